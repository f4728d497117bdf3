"""TypeScript declarations of tools: what a model reads before it writes code."""

import subprocess
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from metamcp_worker.builtin_tools import typescript_types
from metamcp_worker.builtin_tools.typescript_types import declaration
from metamcp_worker.ipc import codec

DENO_S_MAX = 60
DENO: Any = import_module("deno")
"""It has no types of its own."""


def declared(schema: Any, output: Any = None, **members: Any) -> str:
    tool = {"name": "x", "inputSchema": schema, **members}
    if output is not None:
        tool["outputSchema"] = output
    return declaration("t", codec.dump(tool))


def arguments(schema: Any) -> str:
    """The type of the arguments alone, on one line."""
    text = " ".join(declared(schema).split())
    return text.partition("args")[2].rpartition("): Promise<")[0].lstrip("?").removeprefix(": ")


def member(schema: Any, **members: Any) -> str:
    """The type of one argument."""
    whole = {"type": "object", "properties": {"a": schema}, "required": ["a"], **members}
    return arguments(whole).removeprefix("{ a: ").removesuffix(" }").removesuffix(";")


def test_a_tool_is_a_function_with_comments() -> None:
    schema = {
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "Where it\nis. */"},
            "head": {"type": "integer", "default": 10},
        },
        "required": ["path"],
    }
    output = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    assert declared(schema, output, description="Read a file.") == (
        "declare namespace mcp {\n"
        "  /** Read a file. */\n"
        '  function call(name: "t", args: {\n'
        "    /** Where it is. *\\/ */\n"
        "    path: string;\n"
        "    /** Default: 10 */\n"
        "    head?: number;\n"
        "  }): Promise<{ text: string }>;\n"
        "}"
    )


@pytest.mark.parametrize(
    ("schema", "found"),
    [
        ({"type": "string"}, "string"),
        ({"type": "integer"}, "number"),
        ({"type": "null"}, "null"),
        ({"type": ["string", "null"]}, "string | null"),
        ({"type": "string", "nullable": True}, "string | null"),
        ({"enum": ["a", 1, None, True]}, '"a" | 1 | null | true'),
        ({"const": "a"}, '"a"'),
        ({"type": "array", "items": {"type": "string"}}, "string[]"),
        ({"type": "array", "items": {"enum": ["a", "b"]}}, 'Array<"a" | "b">'),
        ({"type": "array"}, "unknown[]"),
        (
            {"type": "array", "prefixItems": [{"type": "string"}], "items": False},
            "[string]",
        ),
        (
            {"type": "array", "prefixItems": [{"type": "string"}], "items": {"type": "number"}},
            "[string, ...number[]]",
        ),
        ({"anyOf": [{"type": "string"}, {"type": "number"}]}, "string | number"),
        ({"oneOf": [{"type": "string"}, {}]}, "unknown"),
        (
            {"allOf": [{"type": "object", "properties": {"b": {"type": "string"}}},
                       {"type": "object", "additionalProperties": {"type": "number"}}]},
            "{ b?: string } & Record<string, number>",
        ),
        (
            {"type": "object", "properties": {"b": {}}, "anyOf": [{"required": ["b"]}]},
            "{ b?: unknown }",
        ),
        ({"type": "object"}, "Record<string, unknown>"),
        ({"type": "object", "properties": {"x-y": {"type": "string"}}}, '{ "x-y"?: string }'),
        ({"type": "object", "additionalProperties": {"type": "string"}}, "Record<string, string>"),
        (False, "never"),
        (True, "unknown"),
        ({"type": "fish"}, "unknown"),
        ("not a schema", "unknown"),
        ({"$ref": "#/$defs/none"}, "unknown"),
        ({"$ref": "https://other.example/schema"}, "unknown"),
        ({"$ref": "#"}, "unknown"),
    ],
)  # fmt: skip
def test_each_kind_of_schema_has_its_type(schema: Any, found: str) -> None:
    assert member(schema) == found


def test_references_are_followed_once_around() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/a~1b"}}}
    assert member({"$ref": "#/$defs/a~1b"}, **{"$defs": {"a/b": node}}) == "{ next?: unknown }"


def test_a_result_with_one_member_is_unwrapped_as_the_call_does() -> None:
    only = {"type": "object", "properties": {"result": {"type": "array"}}}
    two: Any = {"type": "object", "properties": {"result": {}, "more": {}}}
    assert "Promise<unknown[]>" in declared({}, only)
    assert "Promise<{ result?: unknown; more?: unknown }>" in declared({}, two)
    assert "Promise<unknown>" in declared({})


def test_a_tool_without_needed_arguments_is_called_without_any() -> None:
    assert "args?: Record<string, unknown>)" in declared({"type": "object"})


def test_what_is_too_much_is_unknown() -> None:
    deep: Any = {"type": "string"}
    for _ in range(typescript_types.DEPTH_MAX + 1):
        deep = {"type": "array", "items": deep}
    assert "unknown" in member(deep)
    names = [f"D{n}" for n in range(20)]
    doubled = {
        name: {"type": "object", "properties": {key: {"$ref": f"#/$defs/{after}"} for key in "ab"}}
        for name, after in zip(names, [*names[1:], "none"], strict=True)
    }
    assert len(member({"$ref": "#/$defs/D0"}, **{"$defs": doubled})) < 100_000


def test_a_definition_that_cannot_be_read_has_unknown_arguments() -> None:
    raw = b'{"inputSchema":{"properties":{"a":{"default":1e999}}}}'
    assert "args?: Record<string, unknown>): Promise<unknown>" in declaration("t", raw)


# --- any schema -----------------------------------------------------------------------------------

TEXT = st.one_of(
    st.sampled_from(["a", "b-c", "*/", "`${x}`", '"', "\\", "new", "\u2028"]), st.text()
)
LITERALS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False,
                     allow_infinity=False), TEXT, st.lists(TEXT, max_size=1))  # fmt: skip


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some = st.lists(inner, max_size=3)
    named = st.dictionaries(TEXT, inner, max_size=3)
    kinds = ["string", "integer", "number", "boolean", "null", "array", "object", "fish"]
    return st.fixed_dictionaries(
        {},
        optional={
            "type": st.one_of(st.sampled_from(kinds), st.lists(st.sampled_from(kinds), max_size=3)),
            "properties": st.one_of(named, inner),
            "required": st.one_of(st.lists(TEXT, max_size=2), inner),
            "items": inner,
            "prefixItems": some,
            "additionalProperties": inner,
            "anyOf": some,
            "oneOf": some,
            "allOf": some,
            "enum": st.lists(LITERALS, max_size=3),
            "const": LITERALS,
            "default": LITERALS,
            "description": st.one_of(TEXT, inner),
            "nullable": st.booleans(),
            "$ref": st.sampled_from(["#", "#/$defs/a", "#/$defs/b", "#/properties/a", "x", "#/%"]),
            "$defs": st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
        },
    )


SCHEMAS = st.recursive(st.one_of(st.booleans(), LITERALS), nested, max_leaves=12)


@pytest.mark.process
@settings(deadline=None, max_examples=15, phases=(Phase.explicit, Phase.generate))
@given(tools=st.lists(st.tuples(TEXT, SCHEMAS, SCHEMAS, TEXT), min_size=20, max_size=40))
def test_every_declaration_parses(
    tools: list[tuple[str, Any, Any, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    texts = [
        declaration(
            name,
            codec.dump({"inputSchema": given, "outputSchema": made, "description": said}),
        )
        for name, given, made, said in [
            (_clean(name), _clean(given), _clean(made), _clean(said))
            for name, given, made, said in tools
        ]
    ]
    done = run(tmp_path_factory.mktemp("types"), "\n".join(texts), "run")
    assert done.returncode == 0, done.stderr


USE = """
const text: string = (await mcp.call("t", { path: "x", mode: "a", at: [1, "b"] })).text;
// @ts-expect-error an argument that is needed is missing
await mcp.call("t", {});
// @ts-expect-error no such value
await mcp.call("t", { path: "x", mode: "c" });
// @ts-expect-error another type
const number: number = (await mcp.call("t", { path: "x" })).text;
"""


@pytest.mark.process
def test_the_compiler_takes_the_calls_that_the_schema_allows_and_no_others(tmp_path: Path) -> None:
    schema = {
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "mode": {"enum": ["a", "b"]},
            "at": {"type": "array", "items": {"type": ["number", "string"]}},
        },
        "required": ["path"],
    }
    output = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    done = run(tmp_path, declared(schema, output) + USE + "export {};", "check")
    assert done.returncode == 0, done.stderr


def run(folder: Path, text: str, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "t.ts").write_text(text)
    line = [DENO.find_deno_bin(), *words, "--no-remote", "--no-config", str(folder / "t.ts")]
    environ = {"DENO_DIR": str(folder / "deno"), "NO_COLOR": "1", "DENO_NO_UPDATE_CHECK": "1"}
    return subprocess.run(
        line, capture_output=True, text=True, timeout=DENO_S_MAX, env=environ, check=False
    )


def _clean(value: Any) -> Any:
    """The value as JSON can have it: without halves of surrogate pairs."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        items: list[Any] = value
        return [_clean(one) for one in items]
    if isinstance(value, dict):
        members: dict[str, Any] = value
        return {_clean(name): _clean(one) for name, one in members.items()}
    return value
