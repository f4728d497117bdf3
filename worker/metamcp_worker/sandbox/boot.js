// Guest side of a run: the code of the user sees ECMAScript, `mcp`, `args` and `console`.
//
// Owns: removing everything else, the calls of the code and their results, errors of the code.
// Never: limits that matter; the process at the other end holds those and kills this one.
//
// Frames go both ways over standard input and output: 4 bytes with the size, little-endian, then
// JSON. The code may change every prototype, so all that is used after it has begun is captured here.

const { apply, defineProperty, deleteProperty, ownKeys, setPrototypeOf } = Reflect;
const { create, freeze, hasOwn, keys } = Object;
const { isArray } = Array;
const { parse, stringify } = JSON;
const { captureStackTrace } = Error;
const Failure = Error;
const Wrong = TypeError;
const Bytes = Uint8Array;
const Later = Promise;
const Stand = Proxy;
const text = String;
const method = (f) => (self, ...given) => apply(f, self, given);
const then = method(Promise.prototype.then);
const bind = method(Function.prototype.bind);
const join = method(Array.prototype.join);
const indexOf = method(String.prototype.indexOf);
const slice = method(String.prototype.slice);
const fill = method(Bytes.prototype.set);
const encode = bind(TextEncoder.prototype.encode, new TextEncoder());
const decode = bind(TextDecoder.prototype.decode, new TextDecoder());
const write = bind(Deno.stdout.writeSync, Deno.stdout);
const read = bind(Deno.stdin.read, Deno.stdin);
const place = bind(URL.createObjectURL, URL);
const File = Blob;
const core = Deno[Deno.internal].core;

const KEPT = new Set((
  "AggregateError Array ArrayBuffer AsyncDisposableStack BigInt BigInt64Array BigUint64Array " +
  "Boolean DataView Date DisposableStack Error EvalError Float16Array Float32Array Float64Array " +
  "Function Infinity Int16Array Int32Array Int8Array Intl Iterator JSON Map Math NaN Number " +
  "Object Promise Proxy RangeError ReferenceError Reflect RegExp Set String SuppressedError " +
  "Symbol SyntaxError Temporal TypeError URIError Uint16Array Uint32Array Uint8Array " +
  "Uint8ClampedArray WeakMap WeakSet decodeURI decodeURIComponent encodeURI encodeURIComponent " +
  "escape eval globalThis isFinite isNaN parseFloat parseInt undefined unescape " +
  "TextDecoder TextEncoder URL URLSearchParams atob btoa queueMicrotask structuredClone"
).split(" "));

const CHARS_MAX = 4096;  // of the text of an error; of its stack four times as many
let limits;
let calls = 0;
let running = 0;
const pending = create(null);
let waiting = create(null);
let first = 0;
let last = 0;

function send(json) {
  const body = encode(json);
  const frame = new Bytes(4 + body.length);
  const size = body.length;
  frame[0] = size; frame[1] = size >>> 8; frame[2] = size >>> 16; frame[3] = size >>> 24;
  fill(frame, body, 4);
  for (let at = 0; at < frame.length;) at += write(at ? new Bytes(frame.buffer, at) : frame);
}

// Calls

function call(kind, name, server, given, self) {
  if (typeof name !== "string") fail("the name of a tool is a string", self);
  const made = given === undefined ? "{}" : stringify(given);
  if (made === undefined || made[0] !== "{") fail("arguments of a tool are an object", self);
  const error = new Failure("");
  captureStackTrace(error, self);
  const id = ++calls;
  if (id > limits.calls) send('{"type":"GuestOverrun"}');
  const frame = `{"type":"HostCall","call":${id},"kind":"${kind}","name":${stringify(name)},` +
    `"server":${stringify(server)},"arguments":${made}}`;
  return new Later((resolve, reject) => {
    const one = freeze({ __proto__: null, resolve, reject, error });
    pending[id] = one;
    if (running < limits.parallel) {
      running++;
      send(frame);
    } else waiting[last++] = frame;
  });
}

function fail(message, self) {
  const error = new Wrong(message);
  captureStackTrace(error, self);
  throw error;
}

function answer({ call, result, error }) {
  const one = pending[call];
  delete pending[call];
  running--;
  if (first < last) {
    const frame = waiting[first];
    delete waiting[first++];
    running++;
    send(frame);
  }
  if (error) one.reject(named(one.error, error));
  else one.resolve({ __proto__: null, result, error: one.error });
}

function named(error, message) {
  const stack = error.stack;
  const frames = typeof stack === "string" ? indexOf(stack, "\n") : -1;
  error.message = message;
  error.stack = "Error: " + message + (frames < 0 ? "" : slice(stack, frames));
  return error;
}

function value({ result, error }) {
  if (result === null || typeof result !== "object") return result;
  const content = isArray(result.content) ? result.content : [];
  const parts = [];
  for (let i = 0; i < content.length; i++) {
    if (content[i]?.type === "text") parts[parts.length] = content[i].text;
  }
  const words = join(parts, "\n");
  if (result.isError === true) throw named(error, words || "the tool failed");
  const structured = hasOwn(result, "structuredContent") ? result.structuredContent : undefined;
  if (structured !== undefined && structured !== null) {
    const names = keys(structured);
    return names.length === 1 && names[0] === "result" ? structured.result : structured;
  }
  if (!parts.length && content.length) return content;
  try {
    return parse(words);
  } catch {
    return words;
  }
}

const whole = ({ result }) => result;

const mcp = freeze({
  __proto__: null,
  call: freeze(function call_(name, given) {
    return then(call("call", name, "", given, call_), value);
  }),
  raw: freeze(function raw_(name, given) {
    return then(call("call", name, "", given, raw_), whole);
  }),
  tools: freeze(function tools_(query = "") {
    return then(call("tools", query, "", undefined, tools_), whole);
  }),
  servers: table((server) => table((tool) =>
    freeze(function server_(given) {
      return then(call("server", tool, server, given, server_), value);
    }))),
});

function table(made) {
  const get = (_, name) => typeof name === "string" && name !== "then" ? made(name) : undefined;
  return new Stand(freeze(create(null)), freeze({ __proto__: null, get }));
}

// Console

function shown(one) {
  if (typeof one === "string") return one;
  if (one instanceof Failure) return text(one.stack ?? one);
  if (typeof one === "object" && one !== null) {
    try {
      return stringify(one) ?? text(one);
    } catch {
      return "[object]";
    }
  }
  return typeof one === "bigint" ? one + "n" : text(one);
}

function log(...given) {
  const parts = [];
  for (let i = 0; i < given.length; i++) parts[i] = shown(given[i]);
  send(`{"type":"GuestLog","line":${stringify(join(parts, " "))}}`);
}

const quiet = freeze(log);
const screen = freeze({
  __proto__: null, log: quiet, info: quiet, warn: quiet, error: quiet, debug: quiet,
});

// The run

function begin(order) {
  limits = order.limits;
  const source = "export default async function (mcp, args, console) {\n" + order.code + "\n}";
  const address = place(new File([source], { type: "application/" + order.language }));
  then(import(address), (module) => {
    // Called by the queue of microtasks itself, so that its stack has its own frames alone.
    const body = bind(module.default, undefined, mcp, order.args, screen);
    then(then(Later.resolve(), body), returned, (error) => threw("GuestThrew", error));
  }, (error) => threw("GuestUnread", error));
}

function returned(found) {
  let json;
  try {
    json = stringify(found) ?? "null";
  } catch (error) {
    return threw("GuestThrew", error);
  }
  send(json.length > limits.output_bytes ? '{"type":"GuestLarge"}' : `{"type":"GuestValue","value":${json}}`);
}

function threw(type, error) {
  let message = "";
  let stack = "";
  try {
    const object = typeof error === "object" && error !== null && "message" in error;
    if (object) stack = text(error.stack);
    message = object ? text(error.name ?? "Error") + ": " + text(error.message) : shown(error);
  } catch {
    message ||= "an error that cannot be shown";
  }
  message = slice(message, 0, CHARS_MAX);
  stack = slice(stack, 0, CHARS_MAX * 4);
  send(`{"type":"${type}","message":${stringify(message)},"stack":${stringify(stack)}}`);
}

async function serve() {
  let data = new Bytes(0);
  for (;;) {
    const size = data.length < 4 ? 4
      : 4 + (data[0] | data[1] << 8 | data[2] << 16) + data[3] * 2 ** 24;
    if (data.length < size || size === 4) {
      const piece = new Bytes(size - data.length < 65536 ? 65536 : size - data.length);
      const count = await read(piece);
      if (!count) return;
      const more = new Bytes(data.length + count);
      fill(more, data);
      fill(more, new Bytes(piece.buffer, 0, count), data.length);
      data = more;
    } else {
      const message = parse(decode(new Bytes(data.buffer, 4, size - 4)));
      const rest = new Bytes(data.length - size);
      fill(rest, new Bytes(data.buffer, size));
      data = rest;
      if (message.type === "StartRun") begin(message);
      else answer(message);
    }
  }
}

addEventListener("load", () => {
  core.setUnhandledPromiseRejectionHandler((_, error) => {
    log("unhandled rejection:", error);
    return true;
  });
  for (const name of ownKeys(globalThis)) {
    if (!KEPT.has(name)) deleteProperty(globalThis, name);
  }
  deleteProperty(URL, "createObjectURL");
  deleteProperty(URL, "revokeObjectURL");
  setPrototypeOf(globalThis, Object.prototype);
  // Deno's own code calls its functions by these, and would hand them to a replacement.
  for (const name of ["apply", "bind", "call"]) {
    defineProperty(Function.prototype, name, { writable: false, configurable: false });
  }
  serve();
  send('{"type":"GuestReady"}');
});
