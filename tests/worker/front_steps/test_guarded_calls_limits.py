"""Calls that count at limits, through every exit: each of them counts nowhere afterwards."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest
from msgspec import structs

from metamcp_worker.front_calls.server_links import Call
from metamcp_worker.guard.policies import PolicyNote
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.consent_records import ConsentDecided
from metamcp_worker.ipc.errors import Code, ProtocolError
from metamcp_worker.ipc.frames import Error, Progress, QuestionFrame, Result, ServerGone
from metamcp_worker.ipc.messages import ServerState
from metamcp_worker.ipc.middleware_calls import MiddlewareSpec
from metamcp_worker.ipc.packets import Connectors
from metamcp_worker.ipc.spec import ConsentSpec, FrontSpec, PolicySpec, UseLimits
from metamcp_worker.middleware.front_side import MiddlewareClients
from tests.examples import examples
from tests.supervisor.stage import until
from tests.worker.front.called import Front, opened_front, request
from tests.worker.front.callers import Caller
from tests.worker.front.offers import endpoint, offer, template

ENDS = 20_000
TOGETHER = 16
"""Calls that are under way at the same time."""
LIMITS = UseLimits(in_flight=TOGETHER // 3)
DONE = b'{"content":[]}'
HALF = rb'"\ud83d"'
ABLE = b'{"clientCapabilities":{"elicitation":{"form":{}}}}'
ENDPOINT = structs.replace(endpoint("git", "away"), limits=LIMITS)
SPEC = FrontSpec(
    version="2", endpoints=(ENDPOINT,), hosts=(), server_limits={"git": LIMITS, "away": LIMITS},
    workspace_limits={"default": LIMITS}, consent=ConsentSpec(timeout_s=30.0),
    policies=(
        PolicySpec(name="cmd", match=("*/*",), when="mcp.tool.arguments.cmd.contains(';')"),
        PolicySpec(name="asks", match=("git/asked",), effect="ask"),
        PolicySpec(name="noted", match=("git/noted",), effect="log"),
        PolicySpec(name="files", match=("git/file:///etc/*",)),
    ),
    middleware=(MiddlewareSpec(name="gone", match=("git/hooked",), timeout_ms=300, enforce=False),),
)  # fmt: skip
TOOLS = offer("run", "asked", "noted", "hooked", templates=[template("file:///{path}")])


class Exits:
    """A front with limits, and the ways in which its calls end. `refused`: by a limit."""

    def __init__(self, front: Front, seed: int) -> None:
        self.front = front
        self.dice = Random(seed)
        self.generation = 1
        self.refused = 0
        self.attached = asyncio.Event()
        self.attached.set()
        front.steps.guard.count = self.count

    def count(self, note: PolicyNote) -> None:
        """Fail to count what the rule `noted` does, as nothing should, and anything might."""
        if note.policy == "noted":
            raise RuntimeError("it cannot be counted")

    def start(
        self, tool: str = "run", arguments: bytes = b'{"cmd":"ls"}', server: str = "git",
        caller: Caller | None = None,
    ) -> Call:  # fmt: skip
        params = b'{"name":"%b__%b","arguments":%b}' % (server.encode(), tool.encode(), arguments)
        asked = request("tools/call", params, caller=b"" if caller is None else ABLE)
        return self.front.calls.start(self.front.view, asked, caller)

    async def begun(self, tool: str) -> tuple[Call, Caller]:
        """A call in which its client is asked something."""
        asked = asyncio.Event()
        caller = Caller(lambda question: asked.set())
        call = self.start(tool, caller=caller)
        call.answer.add_callback(lambda answer: asked.set())
        if tool == "run":
            self.front.peers["git"].write(QuestionFrame(call.id, call.id, "roots/list", b"{}"))
        await asked.wait()
        return call, caller

    async def up(self) -> None:
        while not self.attached.is_set():
            await self.attached.wait()

    async def finish(self, call: Call) -> None:
        await self.up()
        self.front.peers["git"].write(Result(call.id, DONE))
        await call.answer.wait()

    # Exits

    async def answered(self) -> None:
        call, peer = self.start(caller=Caller()), self.front.peers["git"]
        peer.write(Progress(call.id, b'{"progress":1}'))
        frame = Result(call.id, self.dice.choice((DONE, b'{"isError":true}', b"[", DONE + HALF)))
        peer.write(Error(call.id, b'{"code":1}') if self.dice.random() < 0.3 else frame)
        await call.answer.wait()

    async def cancelled(self) -> None:
        call = self.start()
        call.cancel("the client went away")
        call.cancel("again")
        self.front.peers["git"].write(Result(call.id, DONE))
        assert call.answer.is_cancelled()

    async def denied(self) -> None:
        for arguments in (
            b'{"cmd":";"}', b"{}", b"[]", b'{"cmd":1}', b'{"cmd":"ls","cmd":";"}',
            b'{"cmd":%b}' % HALF, b'{"cmd":%b%b%b}' % (b"[" * 900, HALF, b"]" * 900),
        ):  # fmt: skip
            answer = await self.start(arguments=arguments).answer.wait()
            assert answer is not None
            assert b'"isError":true' in answer.body

    async def read(self) -> None:
        for uri in ("file:///etc/shadow", "file://localhost/etc/shadow", "file:///etc%2Fshadow"):
            asked = request("resources/read", codec.dump({"uri": uri}))
            answer = await self.front.calls.start(self.front.view, asked, None).answer.wait()
            assert answer is not None
            assert answer.code == Code.INVALID_PARAMS

    async def failed(self) -> None:
        with pytest.raises(RuntimeError):
            self.start("noted")

    async def asked(self) -> None:
        how = self.dice.choice((
            b'{"action":"accept"}', b'{"action":"decline"}', b"[", b"failed", b"operator", b"left"
        ))  # fmt: skip
        call, caller = await self.begun("asked")
        consent = self.front.steps.guard.consent
        if not caller.questions:  # its server has ended
            pass
        elif how[:1] in b"{[":
            caller.questions[0].answer(how)
        elif how == b"failed":
            caller.questions[0].fail(b'{"code":1}')
        elif how == b"operator":
            consent.on_decision(ConsentDecided(call=call.id, scope="once", by="ann"))
        elif how == b"left":
            call.cancel("the client went away")
        await self.finish(call)

    async def unasked(self) -> None:
        assert await self.start("asked").answer.wait() is not None
        assert await self.start("asked", b'{"cmd":"ls","a":{"b":1,"b":2}}').answer.wait()

    async def hooked(self) -> None:
        call = self.start("hooked")
        await until(lambda: call.wire is not None or call.answer.is_done(), "it is sent")
        await self.finish(call)

    async def questioned(self) -> None:
        """A server asks in the middle of the call, and never ends it."""
        call, _ = await self.begun("run")
        call.cancel("the client went away")

    async def held(self) -> None:
        calls = self.front.calls
        calls.server_state(ServerState(server="away", state="warming", listed=True))
        call = self.start(server="away")
        if self.dice.random() < 0.5:
            call.cancel("the client went away")
        else:
            calls.server_state(ServerState(server="away", state="error", listed=True))
        await call.answer.wait()

    async def quarantined(self) -> None:
        calls = self.front.calls
        calls.server_state(ServerState(server="away", state="warming", listed=True))
        call = self.start(server="away")
        why = ("away", "run", "the tool is in quarantine")
        calls.quarantine.configure((why,))
        calls.quarantine.configure(())
        await call.answer.wait()

    async def down(self) -> None:
        if not self.attached.is_set():
            return
        call, peer = self.start(), self.front.peers["git"]
        self.attached.clear()
        if self.dice.random() < 0.5:
            peer.write(ServerGone(b"{}"))
        else:
            peer.close()
        await call.answer.wait()
        self.generation += 1
        await self.front.attach("git", self.generation)
        self.attached.set()

    async def one(self) -> None:
        exits: tuple[Callable[[], Awaitable[None]], ...] = (
            self.answered, self.answered, self.cancelled, self.denied, self.failed, self.asked,
            self.unasked, self.hooked, self.questioned, self.held, self.quarantined, self.down,
             self.read,
        )  # fmt: skip
        await self.up()
        try:
            await self.dice.choice(exits)()
        except ProtocolError as why:
            if why.code != Code.OVERLOADED:
                raise
            self.refused += 1

    async def many(self) -> None:
        """Several at once, of which some are beyond the limit."""
        async with asyncio.TaskGroup() as under_way:
            for _ in range(TOGETHER):
                under_way.create_task(self.one())
        self.front.peers["git"].taken()

    def counted(self) -> dict[tuple[str, str], int]:
        """Calls that still count, by the owner of the limit."""
        return {
            meter.owner: meter.inflight for meter in self.front.calls.meters.list_meters()
            if meter.inflight
        }  # fmt: skip


@pytest.mark.promise("M66")
@pytest.mark.timeout(300)
async def test_a_call_counts_at_no_limit_when_it_has_ended_in_any_way() -> None:
    async with opened_front(ENDPOINT, git=TOOLS) as front:
        front.steps.guard.lines = MiddlewareClients(Connectors(), ready_s=0.0)
        front.steps.configure(SPEC)
        front.calls.catalogue("away", offer("run"))
        front.calls.server_state(ServerState(server="away", state="warming", listed=True))
        front.calls.refresh()
        exits = Exits(front, 7)
        for _ in range(examples(ENDS) // TOGETHER):
            await exits.many()
            assert exits.counted() == {}
            assert list(front.calls.under_way()) == []
        assert exits.refused
        owners = {kind for kind, _ in (meter.owner for meter in front.calls.meters.list_meters())}
        assert owners == {"endpoint", "server", "workspace"}
