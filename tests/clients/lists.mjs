// A client of the TypeScript SDKs that reads every list once and prints, as one JSON object, what is
// in it, by the member that names each. With "call", it calls the tools whose names have that text,
// and "called" names those with structured content.
//
//     node lists.mjs '{"sdk": "v2", "era": "modern", "url": "..."}'

const MODERN = "2026-07-28";
const INFO = { name: "lists", version: "1.0" };

const wanted = JSON.parse(process.argv[2]);

async function v1() {
  const at = "@modelcontextprotocol/sdk";
  const { Client } = await import(`${at}/client/index.js`);
  const { StreamableHTTPClientTransport } = await import(`${at}/client/streamableHttp.js`);
  return { client: new Client(INFO), StreamableHTTPClientTransport };
}

async function v2() {
  const { Client, StreamableHTTPClientTransport } = await import("@modelcontextprotocol/client");
  const mode = wanted.era === "modern" ? { pin: MODERN } : wanted.era;
  return { client: new Client(INFO, { versionNegotiation: { mode } }), StreamableHTTPClientTransport };
}

const { client, StreamableHTTPClientTransport } = await { v1, v2 }[wanted.sdk]();
const transport = new StreamableHTTPClientTransport(new URL(wanted.url));
await client.connect(transport);
const found = {
  tools: (await client.listTools()).tools.map((one) => one.name),
  prompts: (await client.listPrompts()).prompts.map((one) => one.name),
  resources: (await client.listResources()).resources.map((one) => one.uri),
  resourceTemplates: (await client.listResourceTemplates()).resourceTemplates.map((one) => one.uriTemplate),
};
if (wanted.call) {
  found.called = [];
  for (const name of found.tools.filter((one) => one.includes(wanted.call))) {
    if ((await client.callTool({ name, arguments: {} })).structuredContent) found.called.push(name);
  }
}
if (wanted.era !== "modern") await transport.terminateSession();
await client.close();
process.stdout.write(JSON.stringify(found) + "\n", () => process.exit(0));
