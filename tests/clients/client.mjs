// A client of the TypeScript SDKs that does everything once and prints, as one JSON object, what it saw.
//
//     node client.mjs '{"sdk": "v2", "way": "http", "era": "modern", "url": "...", "main": "a", ...}'
//
// `sdk`: v1 is @modelcontextprotocol/sdk, v2 is @modelcontextprotocol/client. `way`: http, sse or
// stdio; stdio has `command`, `args` and `cwd` instead of `url`. `era`: legacy, modern or auto.
// `main` is the gateway's name for the fixture; `side` and `slow` are its names for two scripted
// servers, of which the one asks for a visit and the other one's calls are cancelled.

const WAIT_MS = 20_000;
const MODERN = "2026-07-28";
const LOG_LEVEL = "io.modelcontextprotocol/logLevel";
const WATCHED = "test://watched-resource";
const INFO = { name: "typescript", version: "1.0" };
const CAPABILITIES = { elicitation: { form: {}, url: {} }, sampling: {}, roots: { listChanged: true } };

const wanted = JSON.parse(process.argv[2]);
// The second generation gives errors of either revision the codes of the newer one.
const newer_codes = wanted.sdk === "v2";
const seen = { newer_codes, asked: [], logged: [], progress: [], updated: [], changed: 0 };
const main = (name) => `${wanted.main}__${name}`;
const side = (name) => `${wanted.side}__${name}`;
const slow = (name) => `${wanted.slow}__${name}`;

// --- what a person would answer ----------------------------------------------------------------

function filled(schema) {
  const values = { string: "Ada", boolean: true, integer: 7, number: 7.5 };
  const fields = Object.entries(schema?.properties ?? {});
  return Object.fromEntries(fields.map(([name, one]) => [name, one.default ?? values[one.type]]));
}

const handlers = {
  "elicitation/create": ({ params }) => {
    seen.asked.push([params.mode ?? "form", params.message]);
    if (params.mode === "url") return { action: "accept" };
    return { action: "accept", content: filled(params.requestedSchema) };
  },
  "sampling/createMessage": ({ params }) => {
    seen.asked.push(["sampling", params.messages[0].content.text]);
    return { role: "assistant", content: { type: "text", text: "Paris" }, model: "m" };
  },
  "roots/list": () => {
    seen.asked.push(["roots", ""]);
    return { roots: [{ uri: "file:///work", name: "work" }] };
  },
};

const listeners = {
  "notifications/message": ({ params }) => seen.logged.push([params.level, params.data]),
  "notifications/resources/updated": ({ params }) => seen.updated.push(params.uri),
  "notifications/tools/list_changed": () => (seen.changed += 1),
};

// --- the two SDKs ------------------------------------------------------------------------------

async function v1() {
  const at = "@modelcontextprotocol/sdk";
  const { Client } = await import(`${at}/client/index.js`);
  const { StreamableHTTPClientTransport } = await import(`${at}/client/streamableHttp.js`);
  const { SSEClientTransport } = await import(`${at}/client/sse.js`);
  const { StdioClientTransport } = await import(`${at}/client/stdio.js`);
  const types = await import(`${at}/types.js`);
  const schemas = {
    "elicitation/create": types.ElicitRequestSchema,
    "sampling/createMessage": types.CreateMessageRequestSchema,
    "roots/list": types.ListRootsRequestSchema,
    "notifications/message": types.LoggingMessageNotificationSchema,
    "notifications/resources/updated": types.ResourceUpdatedNotificationSchema,
    "notifications/tools/list_changed": types.ToolListChangedNotificationSchema,
  };
  const client = new Client(INFO, { capabilities: CAPABILITIES });
  for (const [method, handle] of Object.entries(handlers)) {
    client.setRequestHandler(schemas[method], async (request) => handle(request));
  }
  for (const [method, hear] of Object.entries(listeners)) {
    client.setNotificationHandler(schemas[method], hear);
  }
  const call = (params, options) => client.callTool(params, types.CallToolResultSchema, options);
  return { client, call, StreamableHTTPClientTransport, SSEClientTransport, StdioClientTransport };
}

async function v2() {
  const at = "@modelcontextprotocol/client";
  const { Client, StreamableHTTPClientTransport, SSEClientTransport } = await import(at);
  const { StdioClientTransport } = await import(`${at}/stdio`);
  const mode = wanted.era === "modern" ? { pin: MODERN } : wanted.era;
  const client = new Client(INFO, { capabilities: CAPABILITIES, versionNegotiation: { mode } });
  for (const [method, handle] of Object.entries(handlers)) {
    client.setRequestHandler(method, async (request) => handle(request));
  }
  for (const [method, hear] of Object.entries(listeners)) {
    client.setNotificationHandler(method, hear);
  }
  const call = (params, options) => client.callTool(params, options);
  return { client, call, StreamableHTTPClientTransport, SSEClientTransport, StdioClientTransport };
}

// --- waiting for facts -------------------------------------------------------------------------

const turn = () => new Promise((resolve) => setTimeout(resolve, 10));

async function until(fact, what) {
  const end = Date.now() + WAIT_MS;
  for (;;) {
    if (await fact()) return;
    if (Date.now() > end) throw new Error(`not within ${WAIT_MS} ms: ${what}`);
    await turn();
  }
}

async function refused(attempt) {
  try {
    await attempt;
    return "no error";
  } catch (error) {
    return error.code;
  }
}

// --- the steps ---------------------------------------------------------------------------------

const sdk = await { v1, v2 }[wanted.sdk]();
const { client, call } = sdk;
const transport = {
  http: () => new sdk.StreamableHTTPClientTransport(new URL(wanted.url)),
  sse: () => new sdk.SSEClientTransport(new URL(wanted.url)),
  stdio: () => new sdk.StdioClientTransport({ command: wanted.command, args: wanted.args, cwd: wanted.cwd }),
}[wanted.way]();
let modern = false;

/** The text of the first block. */
async function text(name, args = {}, options = undefined) {
  const { content } = await call({ name, arguments: args }, options);
  return content[0].text;
}

async function all(list, member) {
  const found = [];
  let cursor;
  do {
    const page = await list(cursor === undefined ? {} : { cursor });
    found.push(...page[member]);
    cursor = page.nextCursor;
  } while (cursor !== undefined);
  return found;
}

const toolNames = async () =>
  (await all((params) => client.listTools(params), "tools")).map((tool) => tool.name);

/** Every transport is told the revision, and not every client tells it. */
function noted() {
  const told = transport.setProtocolVersion?.bind(transport);
  transport.setProtocolVersion = (version) => {
    seen.version = version;
    told?.(version);
  };
}

async function connected() {
  noted();
  await client.connect(transport);
  modern = seen.version === MODERN;
  seen.capabilities = Object.keys(client.getServerCapabilities()).sort();
  seen.instructions = client.getInstructions() ?? "";
}

async function listed() {
  seen.tools = await toolNames();
  const names = (items, member) => items.map((item) => item[member]);
  seen.prompts = names(await all((p) => client.listPrompts(p), "prompts"), "name");
  seen.resources = names(await all((p) => client.listResources(p), "resources"), "uri");
  const templates = await all((p) => client.listResourceTemplates(p), "resourceTemplates");
  seen.templates = names(templates, "uriTemplate");
}

async function called() {
  seen.text = await text(main("test_simple_text"));
  const mixed = await call({ name: main("test_multiple_content_types"), arguments: {} });
  seen.mixed = mixed.content.map((block) => block.type);
  seen.failed = (await call({ name: main("test_error_handling"), arguments: {} })).isError;
  seen.unknown_tool = await refused(call({ name: main("no_such_tool"), arguments: {} }));
  seen.region = await text(main("test_x_mcp_header"), { region: "Zürich" });
  const onprogress = ({ progress, total }) => seen.progress.push([progress, total]);
  await text(main("test_tool_with_progress"), {}, { onprogress });
}

async function logged() {
  if (modern) {
    const _meta = { [LOG_LEVEL]: "info" };
    await call({ name: main("test_tool_with_logging"), arguments: {}, _meta });
  } else {
    await client.setLoggingLevel("info");
    await text(main("test_tool_with_logging"));
  }
}

async function cancelled() {
  const told = async () => {
    const state = JSON.parse(await text(slow("state")));
    return state.told.filter((one) => one.method === "notifications/cancelled").length;
  };
  const before = await told();
  const abort = new AbortController();
  const options = { signal: abort.signal, onprogress: () => abort.abort() };
  const call = text(slow("wait"), {}, options);
  seen.cancelled = await call.then(() => "answered", () => "cancelled");
  await until(async () => (await told()) === before + 1, "the server is told of the cancellation");
}

async function read() {
  const contents = async (uri) => (await client.readResource({ uri })).contents[0];
  seen.read = (await contents("test://static-text")).text;
  seen.blob = (await contents("test://static-binary")).mimeType;
  seen.item = JSON.parse((await contents("test://template/7/data")).text).id;
  seen.unknown_resource = await refused(client.readResource({ uri: "test://nothing" }));
}

async function prompted() {
  const words = async (name, args) =>
    (await client.getPrompt({ name: main(name), arguments: args })).messages[0].content.text;
  seen.prompt = await words("test_simple_prompt");
  seen.prompt_with = await words("test_prompt_with_arguments", { arg1: "a", arg2: "b" });
  const ref = { type: "ref/prompt", name: main("test_prompt_with_arguments") };
  const found = await client.complete({ ref, argument: { name: "arg1", value: "par" } });
  seen.completed = found.completion.values;
  seen.prompt_asked = await words("test_input_required_result_prompt", {});
}

async function asked() {
  seen.elicited = await text(main("test_elicitation"), { message: "Who?" });
  seen.defaults = await text(main("test_elicitation_sep1034_defaults"));
  seen.sampled = await text(main("test_sampling"), { prompt: "Capital?" });
  seen.roots = await text(main("test_input_required_result_list_roots"));
  seen.several = await text(main("test_input_required_result_multiple_inputs"));
  seen.rounds = await text(main("test_input_required_result_multi_round"));
  seen.visited = JSON.parse(await text(side("elicit"), { mode: "url" }));
}

async function watched() {
  const subscription = modern
    ? await client.listen({ toolsListChanged: true, resourceSubscriptions: [WATCHED] })
    : await client.subscribeResource({ uri: WATCHED });
  await text(main("test_update_watched_resource"));
  await until(() => seen.updated.length > 0, "an update of the watched resource");
  await text(main("test_trigger_tool_change"));
  await until(() => seen.changed === 1, "a change of the tools");
  seen.gained = (await toolNames()).includes(main("test_dynamic_tool"));
  await text(main("test_trigger_tool_change"));
  await until(() => seen.changed === 2, "the change back");
  await (modern ? subscription.close() : client.unsubscribeResource({ uri: WATCHED }));
}

async function closed() {
  if (wanted.way === "http" && !modern) await transport.terminateSession();
  await client.close();
}

for (const step of [connected, listed, called, logged, cancelled, read, prompted, asked, watched, closed]) {
  try {
    await step();
  } catch (error) {
    seen.failure = `${step.name}: ${error.stack ?? error}`;
    break;
  }
}
process.stdout.write(JSON.stringify(seen) + "\n", () => process.exit(0));
