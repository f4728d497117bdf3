// Runs of the suite in one process, which loads it once: `node player.mjs PROGRAM`.
//
// Each line of standard input is the arguments of a run as JSON; each line of standard output is its
// exit code and the end of what it printed. A run leaves no connection behind, as if the process had
// ended.

import http from "node:http";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const PRINTED_CHARACTERS_MAX = 4000;
const DISPATCHER = Symbol.for("undici.globalDispatcher.1");
const program = pathToFileURL(process.argv[2]).href;
const answer = process.stdout.write.bind(process.stdout);
let printed = "";
let ended = () => {};

class Over extends Error {}

const keep = (text) => {
  printed = (printed + text).slice(-PRINTED_CHARACTERS_MAX);
  return true;
};
process.stdout.write = keep;
process.stderr.write = keep;
// The first exit of a run is its own: the suite takes the error that follows for a failure.
process.exit = (code) => {
  ended(code ?? 0);
  throw new Over();
};
process.on("unhandledRejection", (error) => error instanceof Over || ended(1, keep(`${error?.stack}`)));

async function disconnect() {
  const used = globalThis[DISPATCHER];
  if (used) {
    globalThis[DISPATCHER] = new used.constructor();
    await used.destroy();
  }
  http.globalAgent.destroy();
}

let number = 0;
for await (const line of createInterface({ input: process.stdin })) {
  printed = "";
  process.argv = [process.argv[0], "suite", ...JSON.parse(line)];
  const code = await new Promise((resolve) => {
    ended = resolve;
    // The program begins when it is loaded; with another address it is loaded again.
    import(`${program}?${number++}`).catch((error) => keep(error.stack) && resolve(1));
  });
  await disconnect();
  answer(`${JSON.stringify([code, printed])}\n`);
}
