// A client of the TypeScript SDK with tasks, those of 2025-11-25, that takes a run of a workflow as a
// task, and prints what it hears of it.
//
//     node tasks.mjs '{"url": "...", "arguments": {"name": "hello"}}'

import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { CallToolResultSchema } from "@modelcontextprotocol/sdk/types.js";

const wanted = JSON.parse(process.argv[2]);
const client = new Client({ name: "tasks", version: "1.0" });
const transport = new StreamableHTTPClientTransport(new URL(wanted.url));
await client.connect(transport);
await client.listTools(); // it makes tasks of tools that say so there
const heard = [];
const call = { name: "run_workflow", arguments: wanted.arguments };
for await (const one of client.experimental.tasks.callToolStream(call, CallToolResultSchema)) {
  if (one.type === "error") throw one.error;
  heard.push([one.type, one.task?.status ?? one.result.structuredContent.output]);
}
await transport.terminateSession();
await client.close();
process.stdout.write(JSON.stringify(heard) + "\n", () => process.exit(0));
