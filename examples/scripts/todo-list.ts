// metamcp: {"description": "List the lines with TODO or FIXME in a folder, by the filesystem server.", "parameters": {"properties": {"path": {"type": "string"}, "pattern": {"type": "string"}}, "required": ["path"]}}
const text = (value: any): string => typeof value === "string" ? value : value.content;
const found = text(await mcp.servers.filesystem.search_files({
  path: args.path, pattern: args.pattern ?? "**/*.*", excludePatterns: ["**/.git/**", "**/node_modules/**"],
}));
const lines = await Promise.all(found.split("\n").filter((path) => path.startsWith("/")).map(async (path) => {
  try {
    const body = text(await mcp.servers.filesystem.read_text_file({ path }));
    return body.split("\n").flatMap((line, at) => /\b(TODO|FIXME)\b/.test(line)
      ? [`${path.slice(args.path.length + 1)}:${at + 1}: ${line.trim()}`] : []);
  } catch {
    return [];  // a folder, or not a text
  }
}));
return lines.flat().sort();
