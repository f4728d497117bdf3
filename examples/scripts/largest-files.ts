// metamcp: {"description": "Tell the largest files of a folder, by the filesystem server.", "parameters": {"properties": {"path": {"type": "string"}, "most": {"type": "integer", "minimum": 1}}, "required": ["path"]}}
const text = (value: any): string => typeof value === "string" ? value : value.content;
const found = text(await mcp.servers.filesystem.search_files({
  path: args.path, pattern: "**/*", excludePatterns: ["**/.git/**", "**/node_modules/**"],
}));
const sizes = await Promise.all(found.split("\n").filter((path) => path.startsWith("/")).map(async (path) => {
  const info = text(await mcp.servers.filesystem.get_file_info({ path }));
  const bytes = Number(/size: (\d+)/.exec(info)?.[1] ?? 0);
  return { path: path.slice(args.path.length + 1), bytes, file: /isFile: true/.test(info) };
}));
return sizes.filter((one) => one.file).sort((a, b) => b.bytes - a.bytes).slice(0, args.most ?? 10)
  .map(({ path, bytes }) => ({ path, bytes }));
