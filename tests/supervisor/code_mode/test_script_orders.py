"""`metamcp scripts` at a prompt, of a gateway that runs and of a state directory."""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from metamcp_supervisor.verbs import Exit
from tests.supervisor.small_gateway import server, steered

pytestmark = pytest.mark.process

COMMAND = (sys.executable, "-m", "metamcp_supervisor", "scripts")
SUM = """\
// metamcp: {"description":"Adds.","parameters":{"properties":{"n":{"type":"integer"}}}}
return args.n + 1
"""
Said = Callable[..., Awaitable[tuple[int, str, str]]]


@asynccontextmanager
async def place(folder: Path, *, running: bool) -> AsyncGenerator[Said]:
    """The command, for a small gateway or for a state directory."""

    async def said(*arguments: str, **options: str) -> tuple[int, str, str]:
        process = await asyncio.create_subprocess_exec(
            *COMMAND, *where, *arguments,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, cwd=folder,
        )  # fmt: skip
        out, err = await process.communicate()
        assert process.returncode is not None
        return process.returncode, out.decode(), err.decode()

    where: tuple[str, ...]
    if running:
        async with steered(server("git")) as (gateway, directory):
            where = ("--runtime-dir", str(directory))
            yield said
            told = [event.cause for event in gateway.journal.since(0) if event.what == "scripts"]
            assert told[0].startswith("'sum' saved as version 1 by ")
    else:
        where = ("--state-dir", str(folder / "state"))
        yield said


@pytest.mark.promise("M48")
@pytest.mark.parametrize("running", [True, False], ids=["running", "at-rest"])
async def test_what_is_saved_is_listed_shown_exported_and_deleted(
    tmp_path: Path, running: bool
) -> None:
    (tmp_path / "sum.ts").write_text(SUM)
    (tmp_path / "b.js").write_text("return 2")
    async with place(tmp_path, running=running) as said:
        assert await said("save", "sum.ts") == (0, "script sum is saved as version 1\n", "")
        code, told, _ = await said("save", "sum.ts", "--expose", "--description", "", "--json")
        made = json.loads(told)["script"]
        assert (code, made["version"], made["expose"], made["description"]) == (0, 2, True, "")
        assert (await said("import", "b.js", "sum.ts"))[1] == (
            "script b is saved as version 1\nscript sum is saved as version 3\n"
        )
        code, told, _ = await said("list", "--json")
        listed = json.loads(told)["scripts"]
        assert [(one["name"], one["language"], one["code"]) for one in listed] == [
            ("b", "javascript", ""), ("sum", "typescript", ""),
        ]  # fmt: skip
        assert "typescript  yes" in (await said("list"))[1]
        assert (await said("show", "b"))[1] == "return 2\n"
        assert (await said("export", "out"))[1] == "out/b.js\nout/sum.ts\n"
        assert (tmp_path / "out" / "sum.ts").read_text() == SUM.replace(
            "}}}}", '}}},"expose":true}'
        )
        assert (await said("delete", "b")) == (0, "script b is deleted\n", "")
        assert len(json.loads((await said("list", "--json"))[1])["scripts"]) == 1


@pytest.mark.parametrize("running", [True, False], ids=["running", "at-rest"])
async def test_what_cannot_be_done_is_said_in_a_sentence(tmp_path: Path, running: bool) -> None:
    (tmp_path / "sum.ts").write_text(SUM)
    (tmp_path / "odd.ts").write_text('// metamcp: {"descripton": ""}\nreturn 1')
    (tmp_path / "empty.ts").write_text("")
    (tmp_path / "x.rb").write_text("puts 1")
    async with place(tmp_path, running=running) as said:
        assert (await said("save", "sum.ts"))[0] == 0
        for words, exit_code, sentence in (
            (("save", "x.rb"), Exit.USAGE, "'save --language' says what it is written in"),
            (("import", "x.rb"), Exit.USAGE, "x.rb has none of the ends .ts, .js"),
            (("show", "sm"), Exit.UNKNOWN_NAME, "no script is named 'sm'; did you mean 'sum'?"),
            (("show", "sum", "--version", "7"), Exit.UNKNOWN_NAME, "is not kept; there are: 1"),
            (("delete", "sm"), Exit.UNKNOWN_NAME, "no script is named 'sm'"),
            (("save", "odd.ts"), Exit.FAILED, "the first line of odd.ts: "),
            (("save", "empty.ts"), Exit.FAILED, "a script has some code"),
            (("save", "sum.ts", "--name", "../x"), Exit.FAILED, "letters, digits"),
            (("save", "none.ts"), Exit.FAILED, "none.ts: No such file"),
        ):
            code, out, err = await said(*words)
            assert (code, out) == (exit_code, ""), words
            assert sentence in err


async def test_a_workspace_that_is_not_configured_is_refused(tmp_path: Path) -> None:
    async with steered(server("git")) as (_, directory):
        process = await asyncio.create_subprocess_exec(
            *COMMAND, "--runtime-dir", str(directory), "--workspace", "tem", "list",
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        _, err = await process.communicate()
        assert process.returncode == Exit.UNKNOWN_NAME
        assert b"no workspace is named 'tem'" in err
