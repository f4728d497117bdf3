// metamcp: {"description": "Tell what is changed in a repository since its last commit, by the git server.", "parameters": {"properties": {"path": {"type": "string"}}, "required": ["path"]}}
const text = (value: any): string => typeof value === "string" ? value : JSON.stringify(value);
const [status, log, ...diffs] = await Promise.all([
  mcp.servers.git.git_status({ repo_path: args.path }),
  mcp.servers.git.git_log({ repo_path: args.path, max_count: 1 }),
  mcp.servers.git.git_diff_unstaged({ repo_path: args.path }),
  mcp.servers.git.git_diff_staged({ repo_path: args.path }),
]);
const changes: Record<string, { added: number; removed: number }> = {};
let now = { added: 0, removed: 0 };
for (const line of diffs.map(text).join("\n").split("\n")) {
  const file = /^diff --git a\/.* b\/(.*)$/.exec(line);
  if (file) now = changes[file[1]] ??= { added: 0, removed: 0 };
  else if (/^\+(?!\+\+ )/.test(line)) now.added++;
  else if (/^-(?!-- )/.test(line)) now.removed++;
}
const untracked = text(status).split("Untracked files:")[1]?.split("\n")
  .filter((line) => line.startsWith("\t")).map((line) => line.trim()) ?? [];
return { last: /Message: (.*)/.exec(text(log))?.[1]?.trim() ?? "", changes, untracked };
