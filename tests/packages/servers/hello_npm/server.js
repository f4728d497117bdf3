#!/usr/bin/env node
// An MCP server with one tool, for npx: no dependencies, so npx fetches nothing.
"use strict";
const results = {
  initialize: (params) => ({
    protocolVersion: params.protocolVersion,
    capabilities: { tools: {} },
    serverInfo: { name: "hello-npm", version: "1.0.0" },
  }),
  "tools/list": () => ({ tools: [{ name: "hello", inputSchema: { type: "object" } }] }),
  "tools/call": () => ({ content: [{ type: "text", text: `hello from node ${process.version}` }] }),
  ping: () => ({}),
};
require("node:readline")
  .createInterface({ input: process.stdin })
  .on("line", (line) => {
    const { id, method, params } = JSON.parse(line);
    if (id === undefined) return;
    const error = { code: -32601, message: "unknown method" };
    const answer = method in results ? { result: results[method](params) } : { error };
    process.stdout.write(`${JSON.stringify({ jsonrpc: "2.0", id, ...answer })}\n`);
  });
