"""The worker of one server: control socket, fronts, session and connection, wired together.

Owns: the order of things in the life of this process, timers, the carrying out of a session's
actions. Never: JSON-RPC, restarts. A worker runs one server once; when the server is gone, or the
supervisor, the worker says why and exits.
"""

import asyncio
import contextlib
import signal
import socket
from time import monotonic

from msgspec import structs

from metamcp_worker.child import inprocess, jsonrpc_lines, process
from metamcp_worker.child.actions import (
    Action,
    CancelRequest,
    CountOnce,
    Fail,
    InvalidLine,
    KeepResult,
    Ready,
    Relisted,
    ReplyToFront,
    ServerRequest,
    TellFronts,
    WarnInLog,
    WriteToServer,
)
from metamcp_worker.child.front_pipes import FrontPipes
from metamcp_worker.child.report import Report
from metamcp_worker.child.server_session import LINES_PER_MESSAGE, ServerSession
from metamcp_worker.child.stdio import StdioTransport
from metamcp_worker.child.transport import SpawnFailed, Transport, TransportListener
from metamcp_worker.confinement.denials import denied_of
from metamcp_worker.ipc import codec, figures, frames, messages, packets
from metamcp_worker.ipc.envelope import OverlongLine
from metamcp_worker.ipc.errors import Code, TooLarge
from metamcp_worker.ipc.frames import (
    CallFrame,
    Cancel,
    ClientNotice,
    Error,
    Frame,
    KeepCall,
    QuestionFrame,
    RecoverCall,
    ReleaseCalls,
    Result,
    ServerGone,
)
from metamcp_worker.ipc.messages import (
    LARGE_MESSAGE,
    THROTTLED,
    AttachFailed,
    AttachFront,
    RunServer,
    ShowCalls,
    Spawned,
    Stop,
    Tune,
)
from metamcp_worker.ipc.packets import Channel
from metamcp_worker.ipc.spec import ServerSpec
from metamcp_worker.runtime import after_fork, loop, memory, orphans
from metamcp_worker.runtime.after_fork import BEAT_S

TICK_S = 0.25
"""Seconds between two ticks, which look at deadlines; also how long a log line may wait."""
AWAKE_S = 1.0
"""Seconds after something happened in which a worker does not rest."""
REST_S = after_fork.REST_S_MAX
"""Maximum seconds between two ticks of a worker that rests."""
NAP_S = 2.0
"""The same of a worker that runs code of others, which may hang while nothing happens, and of one
that must report to the supervisor at each tick."""
LOOK_S = 0.01
"""Seconds between two looks at calls that run out or a front that catches up, while the worker
waits for one of these."""
LARGE_BYTES = 1 << 20
"""Size of a message above which the servers that share a worker wait noticeably."""
QUIET_S = 0.1
"""Seconds without a call in flight before a stopping worker takes no more calls: far longer than a
frame needs through its pipe."""
TRIM_S = 3.0
"""Seconds between two returns of the memory that messages took; the last follows so long after the
last message. Each takes a part of a millisecond."""
FRONT_BEHIND_S_MAX = 1.0
"""Seconds to wait for a front that is behind; not longer, because the other fronts wait too."""

_read_spec = codec.reader(ServerSpec)

EXIT_STOPPED = 0
EXIT_SERVER_DOWN = 1
EXIT_SUPERVISOR_GONE = 2


def main(sock: socket.socket) -> int:
    """Run a child worker to its end, and return its exit code. `sock`: the control socket."""
    # A server that closed its input is an error of a write, not the end of this process.
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    # What a server leaves behind comes to this process, which ends it.
    orphans.become_subreaper()
    return loop.run(_live(sock))


async def _live(sock: socket.socket) -> int:
    return await ServerWorker(sock).run()


_trimmed_at = [0.0]
"""When this process last returned the memory that messages took."""


class ServerWorker:
    """Worker of one server, from start to end (`run`). `mark`: of a server that shares its process
    with others: the process beats for all of them, and its servers are told apart by their marks.
    """

    def __init__(self, sock: socket.socket, mark: str = "") -> None:
        self._loop = asyncio.get_running_loop()
        self._mark = mark
        self._channel = Channel(sock, self._on_order, self._supervisor_gone, self._fd_lost)
        self._report = Report(self._channel)
        self.secret = self._report.secret  # a Listener
        self._fronts = FrontPipes(self._front_says, self._front_gone)
        self._session: ServerSession | None = None
        self._connection: Transport | None = None
        self._over: asyncio.Future[Stop | Fail | None] = self._loop.create_future()
        self._spawned_at = 0.0
        self._due = self._beat_due = self._loop.time()
        self._resting = False
        self._rest_s = REST_S
        self._rest_written = False
        self._last_news = 0.0, 0
        self._rest_until = self._roused_at = self._lag_s = 0.0
        _trimmed_at[0] = self._heard_at = self._loop.time()
        self._needed_at = self._loop.time()
        self._timer = self._loop.call_soon(self._turn)
        self._relief: asyncio.Task[None] | None = None
        self._throttled = False

    async def run(self) -> int:
        """Wait for the reason to end, end everything, and return the exit code."""
        over = await self._over
        try:
            if over is None:
                if self._connection is not None:
                    await self._connection.kill()
                return EXIT_SUPERVISOR_GONE
            if isinstance(over, Stop):
                await self._drain(over.grace_s)
                await self._end(Fail("clean", "it was stopped"))
                return EXIT_STOPPED
            await self._end(over)
            return EXIT_SERVER_DOWN
        finally:
            await self._close()

    async def _drain(self, grace_s: float) -> None:
        """Let calls finish as long as there are any, the server lives, and time is left.

        Fronts know that they shall send no more calls, but earlier ones may still be in the pipe,
        so the worker takes calls until it had nothing to do for a moment.
        """
        session, connection = self._session, self._connection
        if session is None or connection is None:
            return
        quiet_since = self._loop.time()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                while self._loop.time() - quiet_since < QUIET_S:
                    if connection.is_lost or self._channel.is_closed:
                        break
                    await asyncio.sleep(LOOK_S)
                    if session.in_flight or session.queue_length:
                        quiet_since = self._loop.time()
        session.drain()

    async def _end(self, failure: Fail) -> None:
        """Tell the fronts, end the server, tell the supervisor."""
        probing = (
            self._session is not None and self._session.is_probing and failure.reason == "exit"
        )
        body = codec.dump(
            {"reason": failure.reason, "message": self._report.mask_text(failure.message)}
        )
        if self._session is not None and failure.reason == "limit":
            self._do(self._session.fail_calls(Code.TOO_LARGE, f"was ended: {failure.message}"))
        await self._fronts.wait_until_open()
        if self._session is not None:
            self._session.drain()
        self._fronts.announce(ServerGone(body))
        message, connection = failure.message, self._connection
        speaks = failure.reason in {"exit", "signal", "protocol"}
        if connection is not None:
            if failure.reason == "clean" and connection.exit is not None:  # it was not stopped
                speaks = self._session is None or not self._session.ready
            if failure.reason == "limit":
                await connection.kill()
            else:
                await connection.stop()
            await connection.close()
            if speaks and (words := connection.last_words):
                message = f"{message}; on stderr: {words}"
        self._tell_news()
        self._report.answers(self._session)
        how = connection.exit if connection is not None else None
        self._report.send_server_down(failure, message, how, probing=probing)

    async def _close(self) -> None:
        self._timer.cancel()
        if self._relief is not None:
            self._relief.cancel()
        if self._connection is not None:
            self._connection.abort()
            await self._connection.close()
        await self._fronts.close()
        self._report.close()
        self._channel.close()

    # --- the supervisor ---------------------------------------------------------------------

    def _on_order(self, data: bytes, fds: list[int]) -> None:
        match messages.unpack_to_child(data):
            case RunServer(version=version) if len(fds) == 1 and self._session is None:
                self._start(fds.pop(), version)
            case AttachFront(front=front) if len(fds) == 1 and not self._over.done():
                self._fronts.attach(front, fds.pop())
            case Stop() as stop:
                self._finish(stop)
            case Tune() as tune:
                self._report.tune(tune)
                if tune.processes_max and self._connection and self._connection.confinement:
                    self._connection.confinement.limit.most = tune.processes_max
            case ShowCalls(ticket=ticket):
                self._report.send_waiting_calls(
                    ticket, self._session.waiting_calls if self._session else []
                )
            case _:
                pass
        packets.close_all(fds)

    def _fd_lost(self, data: bytes) -> None:
        match messages.unpack_to_child(data):
            case AttachFront(front=front):
                self._report.tell(AttachFailed(what="front", number=front))
            case _:
                self._finish(Fail("spawn", "the worker has no free descriptors"))

    def abort(self) -> None:
        """End the server at once, as if the supervisor were gone."""
        self._supervisor_gone()

    def _supervisor_gone(self) -> None:
        if self._connection is not None:
            self._connection.abort()
        self._finish(None)

    def _start(self, fd: int, version: str) -> None:
        try:
            spec = _read_spec(packets.read_blob(fd))
        except (codec.Malformed, TooLarge, OSError) as error:
            self._finish(Fail("spawn", f"what the worker was told to start is broken: {error}"))
            return
        if self._mark:
            spec = structs.replace(spec, env={**spec.env, process.MARK: self._mark})
        self._report.begin(spec)
        if not spec.command and spec.url is None:
            self._rest_s = NAP_S
        self._spawned_at = self._loop.time()
        try:
            self._connection = launch(spec, version, self)
        except SpawnFailed as failed:
            self._finish(Fail("spawn", str(failed)))
            return
        confined = self._connection.confinement
        achieved, lacking = (confined.achieved, confined.lacking) if confined else ("", ())
        self._report.tell(Spawned(pid=self._connection.pid, achieved=achieved, lacking=lacking))
        self._session = ServerSession(spec, version, self._spawned_at)
        self._do(self._session.start())

    def _finish(self, reason: Stop | Fail | None) -> None:
        """End the worker for this reason, unless it has a reason already."""
        if not self._over.done():
            self._over.set_result(reason)

    # --- fronts -----------------------------------------------------------------------------

    def _front_says(self, front: int, frame: Frame) -> None:
        session, connection, now = self._session, self._connection, monotonic()
        if self._resting:
            self._rouse()
        if session is None or connection is None:
            self._answer_early(front, frame)
        elif isinstance(frame, CallFrame):
            self._needed_at = now
            self._do(session.call(front, frame, now, connection.stuck()))
            if frame.id & figures.MASK == figures.MASK:
                session.timing.on_sent(front, frame.id, now, monotonic())
        else:
            self._front_tells(session, front, frame, now)

    def _answer_early(self, front: int, frame: Frame) -> None:
        """Answer a frame that came before the server was started."""
        if isinstance(frame, RecoverCall):
            self._fronts.send(front, frames.KeptFrame(frame.id))
        elif isinstance(frame, CallFrame):
            body = jsonrpc_lines.error_object(
                Code.SERVER_DOWN, "the server has not been started yet"
            )
            self._fronts.send(front, Error(frame.id, body))

    def _front_tells(self, session: ServerSession, front: int, frame: Frame, now: float) -> None:
        """Handle a frame of a front that is not a call."""
        match frame:
            case Cancel():
                self._do(session.cancel(front, frame, now))
            case frames.ReplyFrame():
                self._do(session.reply(front, frame, now))
            case ClientNotice():
                self._do(session.tell(front, frame, now))
            case KeepCall():
                session.orphans.keep(front, frame)
            case RecoverCall():
                self._do(session.orphans.claim(front, frame, now))
            case ReleaseCalls():
                self._do(session.orphans.release(front, frame, now))
            case _:
                pass  # only workers send the other frames

    def _front_gone(self, front: int) -> None:
        if self._session is not None:
            self._do(self._session.front_gone(front, self._loop.time()))

    # --- the server: a Listener -------------------------------------------------------------

    def on_messages(self, lines: list[bytes], stream: bytes | None = None, via: int = 0) -> None:
        assert self._session is not None
        now = self._heard_at = monotonic()
        if self._resting:
            self._rest_on()
        if self._mark and max(map(len, lines), default=0) >= LARGE_BYTES:
            self._report.count(LARGE_MESSAGE)
        for line in lines:
            self._do(self._session.receive(line, now, stream, via))
        assert self._connection is not None
        session = self._session
        if session.budget.is_exceeded and session.budget.spent(now, session.in_flight):
            self._throttled = True
            self._connection.pause()
        if self._relief is None and self._fronts.behind():
            self._connection.pause()
            self._relief = self._loop.create_task(self._relieve(self._connection))

    def on_skip(self, size_bytes: int, lines: int = 0) -> None:
        assert self._session is not None
        self._session.budget.spend(size_bytes, messages=lines / LINES_PER_MESSAGE)
        self.on_messages([])

    def overlong(self, line: OverlongLine) -> None:
        assert self._session is not None
        self._do(self._session.overlong(line, self._loop.time()))

    def on_request_failed(self, key: bytes, error: bytes) -> None:
        assert self._session is not None
        self._do(self._session.on_request_failed(key, error, self._loop.time()))

    def count(self, counter: str, times: int = 1) -> None:
        self._report.count(counter, times)
        if self._session is not None and (denied := denied_of(counter)) is not None:
            self._session.on_right_denied(denied, monotonic())
            self.on_log()

    def on_server_lost(self, failure: Fail) -> None:
        self._finish(failure)

    def on_log(self) -> None:
        if self._resting:
            self._rouse()

    async def _relieve(self, connection: Transport) -> None:
        """Wait until no front is behind, and read from the server again."""
        end = self._loop.time() + FRONT_BEHIND_S_MAX
        while behind := self._fronts.behind():
            if self._loop.time() > end:
                self._fronts.give_up(behind)
            await asyncio.sleep(LOOK_S)
        self._relief = None
        if not self._throttled:
            connection.resume()

    def _throttle(self, session: ServerSession, connection: Transport, now: float) -> None:
        """Read from a server that has spent its budget once it has some again."""
        self._report.count(THROTTLED)
        if not session.budget.spent(now, session.in_flight):
            self._throttled = False
            if self._relief is None:
                connection.resume()

    # --- actions ----------------------------------------------------------------------------

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            # The two actions of nearly every call come first.
            if type(action) is ReplyToFront:
                self._reply(action)
            elif type(action) is ServerRequest:
                self._ask(action)
            else:
                self._do_more(action)

    def _do_more(self, action: Action) -> None:
        match action:
            case ReplyToFront():
                self._reply(action)
            case ServerRequest():
                self._ask(action)
            case KeepResult():
                self._reply(ReplyToFront(action.front, self._shorten_result(action)))
            case WriteToServer() | CancelRequest():
                self._send(action)
            case TellFronts(frame):
                self._fronts.announce(frame)
            case CountOnce(counter):
                self._report.count(counter)
            case Ready() | Relisted():
                self._report.lists(action, self._loop.time() - self._spawned_at)
            case Fail():
                self._describe(action)
                self._finish(action)
            case WarnInLog(text):
                assert self._connection is not None
                self._connection.warn(text)
            case InvalidLine(line):
                assert self._connection is not None
                self._connection.stray(line)

    def _reply(self, reply: ReplyToFront) -> None:
        session, front, frame = self._session, reply.front, reply.frame
        assert session is not None
        if isinstance(frame, Result) and frame.id & figures.MASK == figures.MASK:
            times = session.timing.take_times(front, frame.id, self._heard_at, monotonic())
            self._fronts.send(front, times)
        sent = self._fronts.send(front, frame)
        if not sent and isinstance(frame, QuestionFrame):
            self._do(session.refuse_question(frame.question, self._loop.time()))
        elif session.orphans.any:
            session.orphans.on_frame_sent(front, frame, self._loop.time())

    def _shorten_result(self, answer: KeepResult) -> Result | Error:
        """Return the answer for the front: the result, or a short one if the result is large."""
        from metamcp_worker.results import result_files  # few servers need it

        frame = answer.frame
        try:
            stored = result_files.keep(frame.body, answer.place, answer.server, answer.tool)
        except (OSError, TooLarge) as error:
            problem = f"answered with {len(frame.body)} bytes, which the gateway could not keep: "
            if isinstance(error, TooLarge):
                problem += f"all results of this endpoint may have {error.limit_bytes} bytes"
            else:
                problem += f"{error.strerror}; its operator can help"
            faults = jsonrpc_lines.ServerErrors(answer.server)
            body = faults.body(Code.INTERNAL_ERROR, problem, {"may_have_run": True})
            return Error(frame.id, body)
        if stored is None:
            return frame
        self._loop.call_soon(memory.trim)  # when the result is not in use any more
        short, about = stored
        self._report.count("result_kept")
        self._report.count("result_tokens_saved", about.saved_tokens)
        return Result(frame.id, short)

    def _describe(self, failure: Fail) -> None:
        """Log the stacks of a module that hangs, because it runs in this process."""
        if failure.reason == "hang" and self._connection is not None and not self._connection.pid:
            for line in inprocess.stacks():
                self._connection.warn(line)

    def _ask(self, request: ServerRequest) -> None:
        assert self._connection is not None
        if not self._connection.request(request):
            self._report.count("lost_write")
            # `ServerGone` notifies all who wait for a server that is gone.
            if self._session is not None and not self._connection.is_lost:
                self._do(self._session.unsent(request.key, self._loop.time()))

    def _send(self, action: WriteToServer | CancelRequest) -> None:
        assert self._connection is not None
        match action:
            case WriteToServer(line, via):
                sent = self._connection.write(line, via)
            case CancelRequest():
                sent = self._connection.drop(action)
        if not sent:
            self._report.count("lost_write")

    # --- time -------------------------------------------------------------------------------

    def _turn(self) -> None:
        now = self._loop.time()
        self._lag_s = max(self._lag_s, now - self._due)
        self._tick(now)
        self._plan(now)

    def _tick(self, now: float) -> None:
        if self._session is not None and self._connection is not None:
            self._connection.tick()
            if self._throttled:
                self._throttle(self._session, self._connection, now)
            self._do(self._session.tick(now))
            if self._session.is_needed or not self._session.ready:
                self._needed_at = now
        self._tell_news()
        used_at = max(self._needed_at, self._heard_at)
        if _trimmed_at[0] <= now - TRIM_S and used_at > _trimmed_at[0] - TRIM_S:
            _trimmed_at[0] = now
            memory.trim()
        rested, self._resting = self._resting, self._rests(now)
        if rested and not self._resting:
            self._beat_due = after_fork.next_beat(now, BEAT_S)
        if self._rest_written and self._last_news == self._news:
            self._lag_s = 0.0
        elif self._resting or now >= self._beat_due:
            self._beat(now)

    @property
    def _news(self) -> tuple[float, int]:
        """The facts that a beat reports besides that this process lives."""
        return self._needed_at, self._session.probes_missed if self._session is not None else 0

    def _beat(self, now: float) -> None:
        self._beat_due = after_fork.next_beat(now, BEAT_S)
        self._report.beat(self._session, self._lag_s, now - self._needed_at)
        self._report.answers(self._session)
        self._last_news = self._news
        self._lag_s = 0.0

    def _rests(self, now: float) -> bool:
        """Whether nothing happens and nothing is due soon. The pulse shows until when."""
        self._rest_written = False
        if self._session is None or self._throttled or now < self._roused_at + AWAKE_S:
            return False
        due, nap = self._session.due(now), after_fork.next_beat(now, NAP_S)
        until = min(due, after_fork.next_beat(now + self._rest_s - NAP_S, NAP_S))
        if until <= now + TICK_S:
            return False
        if not self._session.is_needed and not self._mark:
            self._rest_written = self._write_rest(now, until)
        self._rest_until = until if self._rest_written or self._mark else min(due, nap)
        return True

    def _write_rest(self, now: float, until: float) -> bool:
        return after_fork.write_pulse(max(now, until - BEAT_S), self._lag_s)

    def _write_pulse(self, now: float) -> None:
        if not self._mark:
            after_fork.write_pulse(now, 0.0)

    def _rest_on(self) -> None:
        """Rest on after a message that is only the answer to a probe, for example."""
        now = self._loop.time()
        self._write_pulse(now)
        self._loop.call_soon(self._rest_or_rouse, now)

    def _rest_or_rouse(self, now: float) -> None:
        if self._resting and self._session is not None:
            due = self._throttled or self._session.due(now) <= now + TICK_S
            if due or self._report.unsent:
                self._rouse()
            elif self._rest_written:
                self._write_rest(now, self._rest_until)

    def _rouse(self) -> None:
        """Tick often again, because something happens."""
        self._resting, self._roused_at = False, self._loop.time()
        self._write_pulse(self._roused_at)
        self._timer.cancel()
        self._plan(self._roused_at)

    def _plan(self, now: float) -> None:
        # After a pause of the whole machine the ticks that were missed are not made up for.
        self._due = self._rest_until if self._resting else after_fork.next_beat(now, TICK_S)
        self._timer = self._loop.call_at(self._due, self._turn)

    def _tell_news(self) -> None:
        """Report to the supervisor what was logged and counted."""
        if self._connection is not None:
            for lines in self._connection.take_log_lines():
                self._report.tell(lines)
        if self._fronts.left_out:
            self._report.count("left_out", self._fronts.left_out)
            self._fronts.left_out = 0
        self._report.send_counters()


assert (
    frames.MESSAGE_BYTES_MAX < frames.FRAME_BYTES_MAX
)  # An answer of the largest line has a frame.


_BUILT_IN = frozenset({"auto", "http", "sse"})


def launch(spec: ServerSpec, version: str, listener: TransportListener) -> Transport:
    """Start the server, or the transport to a remote one. Raises SpawnFailed."""
    if spec.url is not None and spec.oauth is not None:
        from metamcp_worker.child.oauth import build_oauth_transport

        return build_oauth_transport(spec, version, listener)
    if spec.url is not None:
        from metamcp_worker.child.streamable_http import remote

        return remote(spec, version, listener)
    if spec.module is not None:
        return StdioTransport(spec, lambda on_exit: inprocess.host(spec, on_exit), listener)
    if not spec.command and spec.transport not in _BUILT_IN:
        from metamcp_worker.child.custom_transport import custom

        return custom(spec, listener)
    return StdioTransport(
        spec, lambda on_exit: process.spawn(spec, on_exit, listener.count), listener
    )
