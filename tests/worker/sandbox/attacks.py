"""Programs that want out, or more than they may have, each with the failures that end it. A call of
the tool `never` is not answered."""

FAKE_GLOBALS = """
for (const name of ["Atomics", "SharedArrayBuffer", "FinalizationRegistry", "WeakRef", "Deno",
                    "process", "EventTarget", "WebAssembly"]) {
  try { globalThis[name] = class { static register() {} }; } catch {}
}
"""

ENDLESS = {
    "a loop": "while (true) {}",
    "a loop after an await": "await 0; while (true) {}",
    "a storm of microtasks": "const f = async () => { for (;;) await 0; }; await f();",
    "queueMicrotask that begets itself": (
        "const f = () => queueMicrotask(f); f(); await new Promise(() => {});"
    ),
    "a promise that never settles": "await new Promise(() => {});",
    "a getter of the result": "return { get a() { while (true) {} } };",
    "toJSON of the result": "return { toJSON() { while (true) {} } };",
    "a thenable as the result": "return { then() { while (true) {} } };",
    "a thenable that never settles": "return { then() {} };",
    "a getter of the error": "throw { get message() { while (true) {} } };",
    "the stack of the error": (
        "throw Object.defineProperty(new Error('x'), 'stack', { get() { while (true) {} } });"
    ),
    "toString of a line of the console": "console.log({ toJSON() { while (true) {} } });",
    "a regular expression": "return /^(a+)+$/.test('a'.repeat(60) + 'b');",
    "a comparison that never ends": "[2, 1].sort(() => { while (true) {} });",
    "a proxy as the result": "return new Proxy({}, { ownKeys() { while (true) {} } });",
    "a loop outside of the function": "} while (true) {} {",
    "an await outside of the function": "} await new Promise(() => {}); {",
    "a loop in a patched promise": (
        "Promise.prototype.then = () => { while (true) {} }; "
        "await (async () => {})().then(() => 1);"
    ),
    "an answer that is a loop": (
        "Object.defineProperty(Object.prototype, 'isError', { get() { while (true) {} } }); "
        "await mcp.call('x', {});"
    ),
    "a call that is never answered": "mcp.call('x', {}); await mcp.call('never', {});",
    "a getter of an argument": "await mcp.call('x', { get a() { while (true) {} } });",
    "a setter on the way of an answer": (
        "Object.defineProperty(Array.prototype, 0, { get() {}, set() { while (true) {} } }); "
        "await mcp.call('x', {});"
    ),
    "a species of promises": (
        "Promise.prototype.constructor = { [Symbol.species]: function (f) { "
        "f(() => { while (true) {} }, () => {}); } }; await mcp.call('x', {});"
    ),
    "a stack that is never prepared": (
        "Error.prepareStackTrace = () => { while (true) {} }; throw new Error('x');"
    ),
    "a disposal": "await using x = { async [Symbol.asyncDispose]() { while (true) {} } };",
    "a loop of the engine itself": "return [].indexOf.call({ length: 2 ** 53 - 1 }, 1);",
    "a large number as text": "return (3n ** (2n ** 24n)).toString().length;",
}

HUNGRY = {
    "a heap bomb": "const a = []; while (true) a.push({ a: a.length, b: [a.length] });",
    "a bomb of strings": (
        "const a = []; for (let i = 0; ; i++) a.push(('x' + i).repeat(100000).split('').join('-'));"
    ),
    "a bomb of typed arrays": (
        "const a = []; while (true) { const b = new Uint8Array(4 << 20); b.fill(1); a.push(b); }"
    ),
    "an ArrayBuffer of 4 GB": "return new ArrayBuffer(4 * 2 ** 30).byteLength;",
    "an ArrayBuffer that grows": (
        "const b = new ArrayBuffer(8, { maxByteLength: 2 ** 32 }); b.resize(2 ** 32); "
        "new Uint8Array(b).fill(1);"
    ),
    "a spread of a generator": (
        "const f = function* () { while (true) yield {}; }; return [...f()];"
    ),
    "a map without end": "const m = new Map(); for (let i = 0; ; i++) m.set(i, { i });",
    "a text that is decoded again and again": (
        "const a = []; const t = new TextEncoder(); "
        "while (true) a.push(t.encode('x'.repeat(1 << 22)));"
    ),
    "closures": (
        "let f = () => 0; while (true) { const g = f; const a = new Array(1000).fill(1); "
        "f = () => g() + a.length; }"
    ),
    "clones without end": (
        "const a = [new Uint8Array(1 << 20).fill(7)]; while (true) a.push(structuredClone(a[0]));"
    ),
}

OTHERS = {
    "200,000 calls without an await": (
        "for (let i = 0; i < 200000; i++) mcp.call('x', {});", "calls"),
    "a call above the limit in the middle of others": (
        "await Promise.all(Array.from({ length: 201 }, () => mcp.call('x', {})));", "calls"),
    "a chain of promises": (
        "const f = () => Promise.resolve().then(f); await f();", "memory timeout"),
    "code that is nested too deeply": ("return " + "(" * 4000 + "1" + ")" * 4000, "syntax"),
    "calls in a loop": ("while (true) await mcp.call('x', {});", "calls"),
    "a result of 100 MB": ("return 'x'.repeat(100_000_000);", "size memory"),
    "an argument of 100 MB": (
        "await mcp.call('x', { a: 'x'.repeat(100_000_000) });", "size memory"),
    "an argument above the limit": ("await mcp.call('x', { a: 'x'.repeat(1_050_000) });", "size"),
    "a name of a tool of 2 MB": ("await mcp.servers['x'.repeat(2e6)].y();", "size"),
    "an error of 100 MB": ("throw new Error('x'.repeat(100_000_000));", "exception memory"),
    "an error with a stack of 100 MB": (
        "Error.prepareStackTrace = () => 'x'.repeat(100_000_000); throw new Error('x');",
        "exception memory"),
    "an error whose message throws": (
        "throw new (class extends Error { get message() { throw this; } })();", "exception"),
    "an error that is a proxy": (
        "throw new Proxy({}, { has: () => true, get() { throw 1; } });", "exception"),
    "sizes of frames that are wrong": (
        """const typed = Object.getPrototypeOf(Uint8Array.prototype);
          Object.defineProperty(typed, "length", { get: () => 1 });
          await mcp.call("x", {});""", "crashed"),
    "sizes of frames that are huge": (
        """const typed = Object.getPrototypeOf(Uint8Array.prototype);
          Object.defineProperty(typed, "length", { get: () => 1e9 });
          return 1;""", "crashed memory"),
    "formats of dates without end": (
        "const a = []; while (true) a.push(new Intl.DateTimeFormat('de'));",
        "memory crashed"),
    "a proxy of a proxy without end": (
        "let p = {}; for (let i = 0; i < 1e6; i++) p = new Proxy(p, {}); return p.x;",
        "memory exception"),
    "JSON that is nested a million times": (
        "return JSON.parse('['.repeat(1e6) + ']'.repeat(1e6));", "memory exception size"),
    "a function that is nested a million times": (
        "return new Function('return ' + '('.repeat(1e6) + ')'.repeat(1e6));", "exception"),
    "an array of all numbers": ("return new Array(2 ** 32 - 1).fill(0).length;", "memory"),
    "lines without end": ("while (true) console.log('x'.repeat(1000));", "size"),
    "empty lines without end": ("while (true) console.log();", "size"),
    "rejections without end": (
        "while (true) { Promise.reject(new Error('x')); await mcp.call('x', {}); }", "size calls"),
    "a deep result": ("let a = []; for (let i = 0; i < 3000; i++) a = [a]; return a;", "size"),
    "a very deep result": (
        "let a = []; for (let i = 0; i < 3e5; i++) a = [a]; return a;", "exception size"),
    "a deep recursion": ("const f = () => f() + 1; return f();", "exception"),
    "a bomb of BigInt": ("let x = 3n; while (true) x *= x;", "exception timeout memory"),
    "a string that doubles": ("let x = 'x'; while (true) x += x;", "exception"),
    "a join of nothing": ("return Array(2 ** 28).join('xx');", "exception"),
    "a file": ("return import('file:///etc/passwd', { with: { type: 'text' } });", "exception"),
    "its own environment": (
        "return import('file:///proc/self/environ', { with: { type: 'bytes' } });", "exception"),
    "a module of the network": ("return import('https://127.0.0.1/x.js');", "exception"),
    "a package of npm": ("return import('npm:left-pad');", "exception"),
    "a package of jsr": ("return import('jsr:@std/path');", "exception"),
    "a bare module": ("return import('fs');", "exception"),
    "a module of Deno's insides": ("return import('ext:core/mod.js');", "exception"),
    "a static import of a file": (
        "} import x from 'file:///etc/passwd' with { type: 'text' }; x.length; {", "exception"),
    "a static import": ("} import fs from 'node:fs'; fs.x; {", "exception syntax"),
    "require": ("return require('fs');", "exception"),
    "a file through a data module": (
        """return import(`data:text/javascript,import x from 'file:///etc/passwd'
          with {type: 'text'}; export default x`);""", "exception"),
    "a module of Node.js through a data module": (
        "return import(\"data:text/javascript,export * from 'node:os'\");", "exception"),
    "a module of Node.js in a world of fakes": (
        FAKE_GLOBALS + "return (await import('node:os')).hostname();", "exception"),
    "a module of WebAssembly": (
        "return import('data:application/wasm;base64,AGFzbQEAAAA=');", "exception crashed"),
}  # fmt: skip

PYTHON = {
    "a loop": ("while True: pass", "timeout"),
    "a loop that catches everything": (
        "while True:\n  try:\n    while True: pass\n  except BaseException: pass", "timeout"),
    "a number that grows": ("x = 3\nwhile True: x *= x", "timeout memory"),
    "a list of texts without end": ("a = []\nwhile True: a.append('x' * 1000000)", "memory"),
    "a text above the limit": ("return 'x' * 70_000_000", "memory"),
    "a result above the limit": ("return 'x' * 2_000_000", "size"),
    "a result that is nested too deeply": (
        "a = []\nfor i in range(300000): a = [a]\nreturn a", "size"),
    "a result that doubles with each level": (
        "a = [1]\nfor i in range(40): a = [a, a]\nreturn a", "timeout memory crashed"),
    "a result that JSON does not have": ("return print", "exception"),
    "an endless recursion": ("def f(): return f()\nf()", "exception"),
    "lines without end": ("while True: print('x' * 1000)", "size"),
    "one line without end": ("while True: print('x' * 1000, end='')", "size"),
    "calls without end": ("while True: await mcp.call('x')", "calls"),
    "calls without an await": ("for i in range(200000): mcp.call('x')", "calls"),
    "a file": ("return open('/etc/passwd').read()", "exception"),
    "a folder": ("import os\nreturn os.listdir('/')", "exception"),
    "its environment": ("import os\nreturn os.environ['PATH']", "exception"),
    "another process": ("import subprocess\nsubprocess.run(['id'])", "exception"),
    "the network": ("import socket\nsocket.socket()", "exception"),
    "the classes of an object": ("return ().__class__.__bases__[0].__subclasses__()", "exception"),
    "a call that is never answered": ("mcp.call('x')\nawait mcp.call('never')", "timeout"),
    "a call above the limit in the middle of others": (
        "import asyncio\nawait asyncio.gather(*[mcp.call('x') for i in range(201)])", "calls"),
    "a name of a tool of 2 MB": ("await mcp.call('x' * 2_000_000)", "size"),
    "an argument above the limit": ("await mcp.call('x', {'a': 'x' * 1_050_000})", "size"),
    "an argument that is nested too deeply": (
        "a = {}\nfor i in range(3000): a = {'a': a}\nawait mcp.call('x', a)", "exception"),
    "an argument that doubles with each level": (
        "a = [1]\nfor i in range(40): a = [a, a]\nawait mcp.call('x', {'a': a})",
        "timeout memory crashed"),
    "a line that doubles with each level": (
        "a = [1]\nfor i in range(40): a = [a, a]\nprint(a)", "timeout memory"),
    "an error of 10 MB": ("raise ValueError('x' * 10_000_000)", "exception memory crashed"),
    "a number of 5,000 digits": ("return 10 ** 5000", "exception"),
    "a text of a large width": ("return f'{1:>10000000000}'", "memory"),
    "a list of a large range": ("return list(range(10 ** 10))", "memory"),
    "a sum of a large range": ("return sum(range(10 ** 12))", "timeout"),
    "a hash that is never there": (
        "class A:\n  def __hash__(self):\n    while True: pass\nreturn {A(): 1}", "timeout"),
    "code that is nested too deeply": ("return " + "(" * 5000 + "1" + ")" * 5000, "syntax"),
    "the environment of its process": ("return open('/proc/self/environ').read()", "exception"),
    "the globals of a method": ("return mcp.__class__.__init__.__globals__", "exception"),
    "the insides of a helper": ("return mcp.servers.x._name", "exception"),
    "a module of the host": ("return __import__('os').getcwd()", "exception"),
    "modules that are loaded": ("import sys\nreturn sys.modules", "exception"),
    "a sleep": ("import time\ntime.sleep(100)", "exception"),
}  # fmt: skip

#: Programs that return true when what they looked for is not there.
SEARCHES = {
    "globals": """
      const names = ["Deno", "process", "require", "module", "fetch", "WebSocket", "EventSource",
        "Worker", "setTimeout", "setInterval", "setImmediate", "clearTimeout", "XMLHttpRequest",
        "WebAssembly", "SharedArrayBuffer", "Atomics", "FinalizationRegistry", "WeakRef",
        "performance", "crypto", "navigator", "location", "localStorage", "caches", "prompt",
        "alert", "Blob", "File", "Request", "Buffer", "global", "self", "window", "close",
        "BroadcastChannel", "MessageChannel", "addEventListener", "dispatchEvent", "__bootstrap",
        "bootstrap", "gc", "d8", "load", "print", "quit", "os"];
      return names.filter((name) => globalThis[name] !== undefined).join() === "";""",
    "the global of a constructor": """
      const all = [Function, (async () => {}).constructor, (function* () {}).constructor,
        mcp.call.constructor, console.log.constructor, Object.constructor];
      return all.every((F) => {
        const found = new F("return typeof Deno + typeof process + typeof fetch")();
        return typeof found !== "string" || found === "undefined".repeat(3);
      });""",
    "the global of an eval": (
        "return (0, eval)('typeof Deno + typeof fetch') === 'undefinedundefined';"
    ),
    "the insides of Deno by a symbol": """
      return ["Deno.internal", "nodejs.util.inspect.custom", "Deno.customInspect"]
        .every((name) => globalThis[Symbol.for(name)] === undefined)
        && Object.getOwnPropertySymbols(globalThis).length === 0;""",
    "the globals of a data module": """
      const all = "typeof Deno + typeof process + typeof fetch + typeof setTimeout";
      const made = await import("data:text/javascript,export default " + all);
      return made.default === "undefined".repeat(4);""",
    "the insides of the helpers": """
      const { servers } = mcp;
      return Reflect.ownKeys(mcp).join() === "call,raw,tools,servers"
        && [servers, servers.x].every((one) => Reflect.ownKeys(one).length === 0
          && Object.getPrototypeOf(one) === null && !Reflect.set(one, "x", 1)
          && !Reflect.defineProperty(one, "x", { value: 1 }) && !Reflect.setPrototypeOf(one, {}))
        && servers[Symbol.iterator] === undefined && servers.then === undefined;""",
    "a caller by a function without rules": """
      const seen = [];
      globalThis.seen = (one) => { seen.push(one); };
      const spy = new Function("seen(arguments.callee.caller); return 1;");
      console.log({ toJSON: spy });
      await mcp.call("x", { a: { toJSON: spy } });
      return seen.length === 2 && seen.every((one) => one === null);""",
    "what a patched promise sees of the reader": """
      const seen = [];
      const was = Promise.prototype.then;
      Promise.prototype.constructor = class extends Promise {};
      Promise.prototype.then = function (...given) {
        seen[seen.length] = this;
        return Reflect.apply(was, this, given);
      };
      await mcp.call("x", {});
      await mcp.call("x", {});
      return seen.every((one) => one instanceof Promise
        && Reflect.ownKeys(one).every((key) => typeof one[key] === "number"));""",
    "the prototypes of the global": (
        "return Object.getPrototypeOf(globalThis) === Object.prototype;"
    ),
    "a caller": """
      const seen = [];
      Error.prepareStackTrace = (_, sites) => {
        for (const site of sites) seen.push(site.getFunction?.(), site.getThis?.());
        return "";
      };
      new Error("x").stack;
      await mcp.call("x", {});
      try { mcp.call(1); } catch (error) { error.stack; }
      return seen.every((one) => one === undefined || one === null);""",
    "paths in a stack": """
      const stacks = [new Error("x").stack];
      try { await mcp.call("x", { a: 1n }); } catch (error) { stacks.push(error.stack); }
      try { mcp.call(); } catch (error) { stacks.push(error.stack); }
      return stacks.every((stack) => !/site-packages|worker/.test(stack));""",
    "the module": (
        "return Object.keys(import.meta).every((key) => !/file:/.test(import.meta[key]));"
    ),
    "a change of what it was given": """
      let refused = 0;
      for (const change of [() => { mcp.call = 1; }, () => { mcp.servers.x = 1; },
          () => { console.log = 1; }, () => { mcp.call.x = 1; },
          () => Object.setPrototypeOf(mcp, {}) ]) {
        try { change(); } catch { refused++; }
      }
      return refused === 5;""",
    "a writer of frames by a patched prototype": """
      const seen = [];
      const typed = Object.getPrototypeOf(Uint8Array.prototype);
      for (const [owner, name] of [[typed, "set"], [Array.prototype, "push"],
          [JSON, "stringify"], [TextEncoder.prototype, "encode"], [Promise.prototype, "then"],
          [Function.prototype, "call"], [Function.prototype, "bind"], [Function.prototype, "apply"],
          [Array.prototype, Symbol.iterator], [String.prototype, "slice"]]) {
        const was = owner[name];
        try {
          owner[name] = function (...given) {
            seen[seen.length] = this;
            return Reflect.apply(was, this, given);
          };
        } catch {}
      }
      console.log("a line");
      await mcp.call("x", { a: 1 });
      await mcp.raw("x", {});
      return seen.every((one) => typeof one !== "function" || one === mcp.call);""",
    "setters on the way of an answer": """
      let seen = 0;
      for (const name of ["0", "1", "type", "call", "result", "resolve", "reject", "limits"]) {
        Object.defineProperty(Object.prototype, name, {
          configurable: true, get() {}, set(value) { if (typeof value === "function") seen++; } });
      }
      await mcp.call("x", { a: 1 });
      return seen === 0;""",
}
