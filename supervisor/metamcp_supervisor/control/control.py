"""The control socket: its connections, the check of its clients, and one JSON-RPC object per line.

Owns: the unix socket in the runtime directory, the check of its clients (token and role), lines,
deadlines and limits of connections. Never: what a verb does (`orders`), asking the kernel who a
client is (`access_io`), printing (`cli.ctl`).

    gateway: {"jsonrpc":"2.0","method":"hello","params":{"v":1,"pid":…,"version":"…"}}
    client:  {"jsonrpc":"2.0","id":1,"method":"hello","params":{"token":"…"}}
    gateway: {"jsonrpc":"2.0","id":1,"result":{"v":1}}
    client:  {"jsonrpc":"2.0","id":2,"method":"logs","params":{"name":"git","follow":true}}
    gateway: {"jsonrpc":"2.0","method":"log","params":{"seq":…,…}}       for each kept line
    gateway: {"jsonrpc":"2.0","id":2,"result":{"v":1}}                   then new ones as they come

The console asks for its users: its hello has the token of a session or an API key, too. The
connection then has the role of the session or the key, and the journal names it.

While `wait` runs or a verb follows, anything that the client sends ends the connection.
"""

import asyncio
import contextlib
import errno
import hmac
import logging
import os
import socket
from pathlib import Path

from msgspec import Raw, Struct

from metamcp_supervisor import runtime
from metamcp_supervisor.backoff import EntryRateLimiter
from metamcp_supervisor.control import access_io, orders
from metamcp_supervisor.control.access import PER_MINUTE_MAX, Role, role
from metamcp_supervisor.control.console_sessions import ConsoleSession
from metamcp_supervisor.control.services import GatewayControl
from metamcp_supervisor.verbs import VERSION, Exit
from metamcp_worker.http.serve import Acceptor
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.envelope import Envelope
from metamcp_worker.ipc.errors import Code, PeerGone, ProtocolError

LINE_BYTES_MAX = 1024 * 1024
"""Maximum bytes of a line in either direction; enough for the status of some two thousand
servers."""
BACKLOG_BYTES_MAX = 4 * 1024 * 1024
"""Maximum bytes that wait for a client that follows and does not read; beyond it the connection is
closed."""
WRITE_S = 10.0
"""Seconds for a client to read an answer."""
LINGER_S = 2.0
"""Seconds for the last lines to reach a client whose connection is being closed."""
DESCRIPTORS_KEPT = 4
"""Connections that are accepted although the gateway has no free descriptor, so that an operator
can see why."""
CLOSE_S = 3.0
"""Seconds for all connections to end when the gateway stops."""

_NULL = b"null"

logger = logging.getLogger("metamcp.control")


class ControlSnapshot(Struct, frozen=True, kw_only=True):
    """Open control socket for the program after this one. `lock`, `state`: descriptors that hold
    the runtime directory and the state directory."""

    directory: str
    lock: int
    listener: int
    token: str
    state: int = -1


class ControlLimits(Struct, frozen=True, kw_only=True):
    """Limits, which a test may change. `hello_s`: seconds from connecting to a valid token;
    `idle_s`: seconds between two requests (`ctl` sends its request at once). Connections at once:
    `connections_max` of the gateway's own user and root together, many more than people at prompts;
    `user_max` of each other user; `others_max` of all other users together; `servers_max` of what
    runs below workers. The last two take no place of the owner. `connections_max`, `others_max` and
    `servers_max` together are at most `journal.FOLLOWERS_MAX`."""

    hello_s: float = 2.0
    idle_s: float = 60.0
    connections_max: int = 40
    user_max: int = 8
    others_max: int = 24
    servers_max: int = 8


class Control:
    """Control socket, which listens from `start` to `close`. `gateway`: the gateway; `config`: its
    main file; `group`: id of the group that may share the socket, else `access_io.GROUP` may."""

    def __init__(
        self,
        gateway: GatewayControl,
        runtime_dir: Path,
        version: str,
        limits: ControlLimits | None = None,
        group: int | None = None,
        *,
        state_dir: Path | None = None,
        config: str = "",
    ) -> None:
        self._gateway = gateway
        self._group = group
        self._refusals = EntryRateLimiter(PER_MINUTE_MAX)
        self._limits = limits or ControlLimits()
        self._runtime_dir, self._state_dir = str(runtime_dir), state_dir
        self._config = config
        self._version = version
        self._claim: runtime.DirectoryLock | None = None
        self._socket: socket.socket | None = None
        self._acceptor: Acceptor | None = None
        self._talks: set[asyncio.Task[None]] = set()
        self._lines: set[ControlConnection] = set()

    async def start(self, snapshot: ControlSnapshot | None = None, *, admits: bool = True) -> None:
        """Claim the directories and listen in the runtime directory, or go on with the socket that
        the program before this one has handed over (`snapshot`). `admits`: as in `admit`. Raises
        runtime.AlreadyRunning and runtime.RuntimeDirUnfit."""
        sock: socket.socket | None = None
        if snapshot is not None:
            claim = runtime.DirectoryLock(
                snapshot.directory, snapshot.lock, snapshot.token, snapshot.state
            )
            sock = socket.socket(fileno=snapshot.listener)
        else:
            claim = runtime.claim(self._runtime_dir, self._config)
        try:
            self._own(claim)
            sock = sock or _bind(claim.socket_path)
            token = os.path.join(claim.directory, runtime.TOKEN)
            self._group = access_io.share(claim.directory, (claim.socket_path, token), self._group)
            self._acceptor = Acceptor(sock, self._make_protocol, reserve=DESCRIPTORS_KEPT)
            self._acceptor.admit(admits)
        except OSError as error:
            if sock is not None:
                sock.close()
            claim.release()
            raise runtime.RuntimeDirUnfit(
                f"{claim.socket_path}: {error.strerror or error}; choose another --runtime-dir"
            ) from None
        except (runtime.AlreadyRunning, runtime.RuntimeDirUnfit):
            claim.release()
            raise
        self._claim, self._socket = claim, sock

    def _own(self, claim: runtime.DirectoryLock) -> None:
        """Claim the state directory. On a full disk it stays unclaimed: no other gateway overwrites
        anything there, and a later write reports the error. Raises runtime.AlreadyRunning and
        runtime.RuntimeDirUnfit."""
        if self._state_dir is None or claim.state_fd >= 0:
            return
        try:
            claim.state_fd = runtime.own(str(self._state_dir))
        except OSError as error:
            if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
                path = error.filename or self._state_dir
                problem = f"the state cannot be kept: {path}: {error.strerror}"
                raise runtime.RuntimeDirUnfit(f"{problem}; choose another --state-dir") from None

    def take_snapshot(self) -> ControlSnapshot:
        """Return the open socket and the held directories, for the program after this one."""
        assert self._claim is not None
        assert self._socket is not None
        return ControlSnapshot(
            directory=self._claim.directory,
            lock=self._claim.lock_fd,
            listener=self._socket.fileno(),
            token=self._claim.token,
            state=self._claim.state_fd,
        )

    @property
    def busy(self) -> bool:
        """Whether a client waits for an answer or is about to ask; clients that follow do not
        count."""
        opening = self._acceptor is not None and self._acceptor.is_opening
        return opening or any(line.in_hand for line in self._lines)

    def admit(self, yes: bool) -> None:
        """Accept new clients, or let them wait for now."""
        if self._acceptor is not None:
            self._acceptor.admit(yes)

    async def close(self) -> None:
        """End every connection, and remove socket and token."""
        if self._acceptor is not None:
            await self._acceptor.close()
            self._acceptor = None
        for talk in self._talks:
            talk.cancel()
        if self._talks:
            await asyncio.wait(self._talks, timeout=CLOSE_S)
        if self._claim is not None:
            if problem := self._claim.release():
                logger.warning("%s; the next start removes them", problem)
            self._claim = None

    def _make_protocol(self) -> asyncio.StreamReaderProtocol:
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(LINE_BYTES_MAX), self._accept)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        line = ControlConnection(reader, writer, self._group)
        self._talks.add(task)
        self._lines.add(line)
        try:
            await self._talk(line)
        except (PeerGone, OSError):
            pass  # the client left in the middle: its own business
        except asyncio.CancelledError:
            pass  # by `close`; the streams of asyncio log a traceback for a task that says so
        except Exception:
            logger.exception("a connection of the control socket ended by a fault of the gateway")
        finally:
            self._lines.discard(line)
            await line.close()
            self._talks.discard(task)
            if self._acceptor is not None:
                self._acceptor.refill()

    async def _talk(self, line: "ControlConnection") -> None:
        """Serve one connection, from hello to its end."""
        try:
            self._check_place(line)
            self._check(line)
            hello = {"v": VERSION, "pid": os.getpid(), "version": self._version}
            await line.tell("hello", hello)
            await self._admit(line)
        except ProtocolError as refusal:
            await line.refuse(refusal)
            return
        while True:
            try:
                request = await line.request(self._limits.idle_s)
                if request is None:
                    return
                line.in_hand = request.method != "upgrade"  # which waits for the others
                result = await self._carry_out(line, request)
            except ProtocolError as refusal:
                await line.refuse(refusal)
                line.in_hand = False
                continue
            if result is None:
                return
            await line.answer(result)
            line.in_hand = False

    def _check_place(self, line: "ControlConnection") -> None:
        """Raise ProtocolError for a connection above a limit."""
        limits = self._limits
        if line.of_server:
            servers = sum(other.of_server for other in self._lines)
            _check_limit(servers, limits.servers_max, "connections of servers")
            return
        people = [other for other in self._lines if not other.of_server]
        if line.own_role is Role.ADMIN:
            admins = [other for other in people if other.own_role is Role.ADMIN]
            _check_limit(len(admins), limits.connections_max, "connections")
            return
        others = [other.uid for other in people if other.own_role is not Role.ADMIN]
        _check_limit(others.count(line.uid), limits.user_max, f"connections of user id {line.uid}")
        _check_limit(len(others), limits.others_max, "connections of other users")

    def _check(self, line: "ControlConnection") -> None:
        """Raise ProtocolError for another user if the socket is not shared; then it is for its
        owner and root alone."""
        if self._group is None and line.own_role is not Role.ADMIN:
            raise ProtocolError(
                Exit.DENIED,
                f"user id {line.uid} may not steer the gateway of user id {os.geteuid()}; run"
                " metamcp ctl as that user or as root",
            )

    async def _admit(self, line: "ControlConnection") -> None:
        """Wait for the first request, which must be `hello` with the token. Raises ProtocolError,
        and PeerGone if no request comes."""
        request = await line.request(self._limits.hello_s)
        if request is None:
            raise PeerGone("no hello")
        if request.method != "hello":
            raise ProtocolError(Exit.DENIED, "the first request must be 'hello' with the token")
        assert self._claim is not None
        try:
            hello = codec.decode_as(orders.Hello, request.params or b"{}")
        except codec.Malformed as error:
            raise ProtocolError(Code.INVALID_PARAMS, f"parameters of hello: {error}") from None
        if not hmac.compare_digest(hello.token.encode(), self._claim.token.encode()):
            raise ProtocolError(
                Exit.DENIED,
                f"the token is not the one in {self._claim.directory}/{runtime.TOKEN}",
            )
        line.session = orders.admit(self._gateway, line, self._refusals, hello)
        key = {"key": line.session.key} if line.session is not None else {}
        await line.answer({"v": VERSION, "role": str(line.role), **key})

    async def _carry_out(self, line: "ControlConnection", request: Envelope) -> object:
        """Carry out one request. Raises ProtocolError, also for a fault of the gateway, and
        PeerGone."""
        if request.jsonrpc != "2.0" or request.method is None or line.asked == _NULL:
            raise ProtocolError(
                Code.INVALID_REQUEST,
                'a request has "jsonrpc":"2.0", a method, and a string or whole number as id',
            )
        self._gateway.sessions.check_session(line.session)
        try:
            return await orders.carry_out(
                self._gateway, line, self._refusals, request.method, bytes(request.params)
            )
        except (ProtocolError, PeerGone):
            raise
        except Exception as error:
            logger.exception("the verb %s failed by a fault of the gateway", request.method)
            raise ProtocolError(
                Code.INTERNAL_ERROR,
                f"'{request.method}' failed by a fault of the gateway ({type(error).__name__}); its"
                " log has the details",
            ) from None


class ControlConnection:
    """Connection of one client: a `services.ControlStream`. `group`: id of the group that shares
    the socket, if one does."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, group: int | None
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._woken = asyncio.Event()
        self._left: asyncio.Task[bytes] | None = None
        self._peer = access_io.peer(writer.get_extra_info("socket"))
        self.own_role = role(self._peer.uid, self._peer.groups, owner=os.geteuid(), group=group)
        """Role of the user at the other end."""
        self.of_server = access_io.below_worker(self._peer.pid)
        self.session: ConsoleSession | None = None
        self.asked = _NULL
        """Raw id of the request that is being answered."""
        self.in_hand = True
        """Whether the first request is not answered yet, or another one is being carried out."""

    @property
    def uid(self) -> int:
        return self._peer.uid

    @property
    def role(self) -> Role:
        session = self.session
        return self.own_role if session is None else min(self.own_role, session.role)

    @property
    def caller(self) -> str:
        return self.session.description if self.session is not None else str(self._peer)

    async def request(self, timeout_s: float) -> Envelope | None:
        """Return the next request, or None at the end or if none comes in `timeout_s` seconds.
        Raises ProtocolError for a line that is not JSON-RPC."""
        self.asked = _NULL
        begun = await self._end_watch()
        try:
            async with asyncio.timeout(timeout_s):
                line = begun + await self._reader.readuntil(b"\n")
        except asyncio.IncompleteReadError:
            return None
        except TimeoutError:
            refusal = ProtocolError(Exit.TIMEOUT, f"no request came within {timeout_s:g} s")
            await self.refuse(refusal)
            return None
        except asyncio.LimitOverrunError:
            refusal = ProtocolError(
                Code.INVALID_REQUEST, f"a line has more than {LINE_BYTES_MAX} bytes"
            )
            await self.refuse(refusal)
            return None
        try:
            envelope = codec.envelope(line)
        except codec.Malformed as error:
            raise ProtocolError(Code.PARSE_ERROR, f"not a request: {error}") from None
        if codec.id_ok(bytes(envelope.id)):
            self.asked = bytes(envelope.id)
        return envelope

    async def tell(self, method: str, params: object) -> None:
        await self._send({"jsonrpc": "2.0", "method": method, "params": params})

    async def answer(self, result: object) -> None:
        await self._send({"jsonrpc": "2.0", "id": Raw(self.asked), "result": result})

    async def refuse(self, refusal: ProtocolError) -> None:
        """Answer the request in hand with an error; before the first one its id is null."""
        error: dict[str, object] = {"code": int(refusal.code), "message": refusal.message}
        if refusal.data:
            error["data"] = Raw(refusal.data)
        await self._send({"jsonrpc": "2.0", "id": Raw(self.asked), "error": error})

    def push(self, method: str, params: object) -> None:
        line = codec.dump({"jsonrpc": "2.0", "method": method, "params": params})
        transport = self._writer.transport
        if transport.is_closing():
            raise PeerGone("the client left")
        if transport.get_write_buffer_size() + len(line) > BACKLOG_BYTES_MAX:
            note = {"message": f"more than {BACKLOG_BYTES_MAX} bytes waited to be read"}
            line = codec.dump({"jsonrpc": "2.0", "method": "lagged", "params": note})
            self._writer.write(line + b"\n")
            raise PeerGone("the client does not read")
        self._writer.write(line + b"\n")

    def wake(self) -> None:
        self._woken.set()

    async def wait_for_wake(self, timeout_s: float | None) -> None:
        self.in_hand = False
        if self._left is None:
            self._left = asyncio.create_task(self._reader.read(1))
            self._left.add_done_callback(lambda _: self._woken.set())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._woken.wait()
        self._woken.clear()
        if self._left.done():
            raise PeerGone("the client left")

    async def _end_watch(self) -> bytes:
        """End the watch of `wait_for_wake`; the byte that it has read belongs to the next
        request."""
        watch, self._left = self._left, None
        if watch is None:
            return b""
        watch.cancel()
        (result,) = await asyncio.gather(watch, return_exceptions=True)
        return result if isinstance(result, bytes) else b""

    async def close(self) -> None:
        """Close the connection when all is sent, or after LINGER_S. Never raises."""
        self._writer.close()
        try:
            async with asyncio.timeout(LINGER_S):
                await self._end_watch()
                await self._writer.wait_closed()
        except (TimeoutError, asyncio.CancelledError):
            self._writer.transport.abort()
        except OSError:
            pass  # the other side was quicker

    async def _send(self, message: object) -> None:
        line = codec.dump(message)
        if len(line) >= LINE_BYTES_MAX:
            problem = f"the answer has {len(line)} bytes, a line may have {LINE_BYTES_MAX}"
            error = {"code": int(Exit.FAILED), "message": problem}
            line = codec.dump({"jsonrpc": "2.0", "id": Raw(self.asked), "error": error})
        if self._writer.transport.is_closing():
            raise PeerGone("the client left")  # asyncio would log each line that nobody gets
        self._writer.write(line + b"\n")
        try:
            async with asyncio.timeout(WRITE_S):
                await self._writer.drain()
        except TimeoutError:
            raise PeerGone("the client does not read") from None
        except OSError:
            raise PeerGone("the client left") from None


def _check_limit(count: int, most: int, noun: str) -> None:
    """Raise ProtocolError if `count` is above `most`."""
    if count > most:
        raise ProtocolError(Exit.FAILED, f"{most} {noun} to the control socket are open; close one")


def _bind(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)  # so that other users cannot connect at any moment
    try:
        sock.bind(path)
    except OSError:
        sock.close()
        raise
    finally:
        os.umask(before)
    return sock
