"""Tools and queries that the search is judged by: the public ones, and our own.

Owns: reading them into one shape. Never: the search, what is measured.

The folder of the public sets has these files, as their repositories have them:

    livemcpbench/tools.json               icip-cas/LiveMCPBench: tools/LiveMCPTool/tools.json
    livemcpbench/all_annotations.json     the same: annotated_data/all_annotations.json
    mcptoolbenchpp/*.json                 mcp-tool-bench/MCPToolBenchPP: the files *_single*.json of
                                          data/browser, file_system, search and finance, without
                                          *_demo.json and *_forqwen.json
    counted/pay_single_demo.json          the same: data/pay/pay_single_demo.json
"""

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from metamcp_worker.search.index import ToolDocument

OWN = Path(__file__).parent / "own"
QUERIES_PER_TOOL = 3
"""Of set B, so that a few tools with many queries do not decide."""

Json = Any
"""What a file of others holds; it is only read here."""


@dataclass(frozen=True, slots=True)
class Query:
    """`wanted`: the names of the tools that should be found."""

    text: str
    wanted: frozenset[str]


@dataclass(frozen=True, slots=True)
class Sets:
    """`queries`: by the letter of their set. A and B want one tool each, C all of several.
    `counted`: tools that are not searched, as there are no queries for them; what they cost
    counts."""

    documents: list[ToolDocument] = field(default_factory=list[ToolDocument])
    counted: list[ToolDocument] = field(default_factory=list[ToolDocument])
    queries: dict[str, list[Query]] = field(default_factory=dict[str, list[Query]])

    def add(self, server: str, definition: Json) -> None:
        self.documents.append(_document(server, definition))

    def names(self) -> set[str]:
        return {document.pair[1] for document in self.documents}


def _document(server: str, definition: Json) -> ToolDocument:
    name = definition["name"]
    raw = json.dumps(definition, ensure_ascii=False, separators=(",", ":")).encode()
    return ToolDocument((server, name), f"{server}__{name}", raw)


def own() -> Sets:
    """Written for this project: small, and judged in CI."""
    sets = Sets()
    for server, tools in json.loads((OWN / "tools.json").read_text()).items():
        for name, (description, parameters) in tools.items():
            properties = {
                key: {"type": "string", "description": parameters[key]} for key in parameters
            }
            schema = {"type": "object", "properties": properties}
            sets.add(server, {"name": name, "description": description, "inputSchema": schema})
    for letter, pairs in json.loads((OWN / "queries.json").read_text()).items():
        sets.queries[letter] = [Query(text, frozenset(wanted.split())) for text, wanted in pairs]
    return sets


def public(folder: Path) -> Sets:
    """Raises OSError where a file is not there."""
    sets = Sets()
    for entry in json.loads((folder / "livemcpbench" / "tools.json").read_text()):
        for server, listed in entry["tools"].items():
            for tool in listed["tools"]:
                sets.add(server, tool)
    sets.queries["A"], sets.queries["B"], sets.queries["C"] = [], [], []
    _calls(sets, sorted((folder / "mcptoolbenchpp").glob("*.json")))
    _tasks(sets, json.loads((folder / "livemcpbench" / "all_annotations.json").read_text()))
    for case in json.loads((folder / "counted" / "pay_single_demo.json").read_text()):
        _count(sets, case)
    return sets


def _calls(sets: Sets, files: list[Path]) -> None:
    """B: one sentence for one call. Their tools join the others, if no other has their name."""
    for path in files:
        taken: Counter[str] = Counter()
        for case in json.loads(path.read_text()):
            servers = {name: key for key, names in case["mcp_tools_dict"].items() for name in names}
            known = sets.names()
            for tool in case["tools"]:
                if tool["name"] not in known:
                    sets.add(
                        servers[tool["name"]], {**tool, "inputSchema": tool.get("input_schema")}
                    )
            wanted = case["function_call_label"][0]["name"]
            if case["query"].isascii() and taken[wanted] < QUERIES_PER_TOOL:
                taken[wanted] += 1
                sets.queries["B"].append(Query(case["query"], frozenset({wanted})))


def _count(sets: Sets, case: Json) -> None:
    servers = {name: key for key, names in case["mcp_tools_dict"].items() for name in names}
    known = sets.names() | {document.pair[1] for document in sets.counted}
    for tool in case["tools"]:
        if tool["name"] not in known:
            definition = {**tool, "inputSchema": tool.get("input_schema")}
            sets.counted.append(_document(servers[tool["name"]], definition))


def _tasks(sets: Sets, tasks: Json) -> None:
    """A: the steps of tasks that have as many steps as tools; C: whole tasks with all tools."""
    known = sets.names()
    for task in tasks:
        notes = task["Annotator Metadata"]
        steps, tools = _numbered(notes["Steps"]), _numbered(notes["Tools"])
        if len(steps) == len(tools):
            sets.queries["A"] += [
                Query(step, frozenset({tool}))
                for step, tool in zip(steps, tools, strict=True)
                if tool in known
            ]
        if wanted := known & set(tools):
            sets.queries["C"].append(Query(task["Question"], frozenset(wanted)))


def _numbered(text: str) -> list[str]:
    lines = [line for line in text.splitlines() if line.strip()]
    return [re.sub(r"^\s*\d+[.)]?\s*", "", line).strip() for line in lines]
