// A client of the TypeScript SDKs that asks for the list of tools once, hears of no change of it, and
// goes on calling by name. Prints, as one JSON object, what it listed, sent and was answered.
//
//     node heedless.mjs '{"sdk": "v2", "era": "modern", "url": "...", "calls": [["git_status", {}]]}'

const MODERN = "2026-07-28";
const INFO = { name: "heedless", version: "1.0" };

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
const sent = [];
const send = transport.send.bind(transport);
transport.send = (message, options) => {
  for (const one of [message].flat()) sent.push(one.method);
  return send(message, options);
};

await client.connect(transport);
const { tools } = await client.listTools();
const answers = [];
for (const [name, args] of wanted.calls) {
  const { content, isError } = await client.callTool({ name, arguments: args });
  answers.push({ text: content[0].text, failed: isError === true });
}
if (wanted.era !== "modern") await transport.terminateSession();
await client.close();
const listed = tools.map((tool) => tool.name);
process.stdout.write(JSON.stringify({ listed, sent, answers }) + "\n", () => process.exit(0));
