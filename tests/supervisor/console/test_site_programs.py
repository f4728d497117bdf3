"""Verbs of programs at the console, whatever the gateway behind it answers and the program does."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest

from metamcp_supervisor import runtime
from metamcp_supervisor.control.console_sessions import NOT_A_KEY
from metamcp_supervisor.verbs import Exit
from tests.supervisor.console.served import serve_console

pytestmark = [pytest.mark.process, pytest.mark.promise("M107")]

KEY = {"authorization": "Bearer mmcp_k3Jq9ZxA_x"}
STATUS = {"method": "status"}
ADMITTED = {"id": 1, "result": {"v": 1, "role": "viewer", "key": "k3Jq9ZxA"}}

Answer = Callable[[str], list[object]]
"""Answer of a gateway to a verb: its lines."""


@asynccontextmanager
async def ask_through(directory: Path, answer: Answer) -> AsyncGenerator[httpx2.AsyncClient]:
    """Serve the console of a gateway with these answers, and yield a client with an API key."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'{"jsonrpc":"2.0","method":"hello","params":{"v":1}}\n')
        while line := await reader.readline():
            for sent in answer(json.loads(line)["method"]):
                raw = sent if isinstance(sent, bytes) else json.dumps(sent).encode()
                writer.write(raw + b"\n")
        writer.close()

    (directory / runtime.TOKEN).write_text("token")
    async with (
        await asyncio.start_unix_server(talk, runtime.socket_path(str(directory))),
        serve_console(str(directory)) as base,
        httpx2.AsyncClient(base_url=base, timeout=20.0, headers=KEY) as program,
    ):
        yield program


async def test_a_gateway_that_does_not_judge_keys_gets_no_verb(tmp_path: Path) -> None:
    verbs: list[str] = []

    def answer(method: str) -> list[object]:
        verbs.append(method)
        return [{"id": 1, "result": {"v": 1, "role": "admin"}}]

    async with ask_through(tmp_path, answer) as program:
        refused = await program.post("/control", json={"method": "stop"})
    assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
    assert refused.json()["error"] == {"code": Exit.DENIED, "message": NOT_A_KEY}
    assert verbs == ["hello"]


@pytest.mark.parametrize(
    "hello",
    [
        {"id": 1, "error": {"code": Exit.DENIED, "message": "the token is not the one in /run/x"}},
        {"id": 1, "result": {"v": 1, "role": 7}},
        b"hello",
    ],
)
async def test_strangers_read_nothing_of_a_console_that_is_not_admitted(
    tmp_path: Path, hello: object
) -> None:
    async with ask_through(tmp_path, lambda _: [hello]) as program:
        refused = await program.post("/control", json=STATUS)
    assert refused.status_code == 503
    error = refused.json()["error"]
    assert error["code"] == Exit.NOT_RUNNING
    assert error["message"] == "the gateway does not admit its console now"


async def test_an_answer_that_cannot_be_read_is_no_fault_of_the_program(tmp_path: Path) -> None:
    async with ask_through(
        tmp_path, lambda method: [ADMITTED if method == "hello" else b"status"]
    ) as program:
        answer = await program.post("/control", json=STATUS)
        assert answer.status_code == 503
        assert "the gateway sent a bad answer" in answer.json()["error"]["message"]


async def test_an_answer_that_breaks_off_keeps_the_lines_before(tmp_path: Path) -> None:
    event = {"method": "event", "params": {"seq": 1}}

    def answer(method: str) -> list[object]:
        return [ADMITTED] if method == "hello" else [event, b"{"]

    async with ask_through(tmp_path, answer) as program:
        answered = await program.post("/control", json={"method": "events"})
    assert (answered.status_code, answered.json()) == (200, event)
