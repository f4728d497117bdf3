"""A worker played by the test: the far end of a real pipe, as a plain Connection."""

import asyncio
import multiprocessing
import os
from multiprocessing.connection import Connection
from typing import Any

from metamcp_worker.ipc import codec, frame_bytes
from metamcp_worker.ipc.frames import CallFrame, Cancel, Frame, KeepCall

WAIT_S = 30.0


class Peer:
    """What the worker of one server sees. `fd`: the front's end, for whoever takes it over; `kept`:
    what it was told of calls that outlive the front, which nothing else waits for."""

    def __init__(self) -> None:
        near, self._far = multiprocessing.Pipe()
        self.fd = os.dup(near.fileno())
        near.close()
        self.kept: list[KeepCall] = []
        self._ahead: list[Frame] = []

    async def read(self) -> Frame:
        while not self._ahead:
            self._note(await asyncio.to_thread(_read, self._far))
        return self._ahead.pop(0)

    async def call(self) -> CallFrame:
        frame = await self.read()
        assert isinstance(frame, CallFrame)
        return frame

    async def cancelled(self) -> Cancel:
        frame = await self.read()
        assert isinstance(frame, Cancel)
        return frame

    def quiet(self) -> bool:
        """Is nothing there to read?"""
        while self._far.poll():
            self._note(self._far.recv_bytes())
        return not self._ahead

    def taken(self) -> list[Frame]:
        """All that is there to read."""
        self.quiet()
        found, self._ahead = self._ahead, []
        return found

    def write(self, frame: Frame) -> None:
        self._far.send_bytes(frame_bytes.pack(frame)[4:])  # it puts the length in front by itself

    def close(self) -> None:
        self._far.close()

    def _note(self, payload: bytes) -> None:
        frame = frame_bytes.unpack(payload)
        if isinstance(frame, KeepCall):
            self.kept.append(frame)
        else:
            self._ahead.append(frame)


def _read(far: Connection) -> bytes:
    assert far.poll(WAIT_S), "nothing came through the pipe"
    return far.recv_bytes()


def error_data(body: bytes) -> dict[str, Any]:
    """The `data` of a raw error object."""
    data: dict[str, Any] = codec.value(body)["data"]
    return data
