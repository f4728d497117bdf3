"""A true gateway with small servers behind endpoints of every kind, and what may happen to it.

Owns: its configuration, its servers' processes, its fronts, orders of an operator. Never: clients
(`view_clients`), what they are to see (`tests.viewmodel`).
"""

import os
import signal
from typing import Any

from metamcp_supervisor.control.client import Failed
from tests.live.gateway import Gateway, fake
from tests.viewmodel import Place, Tool
from tests.waiting import until

TOOLS = ("change", "echo", "pid")
FIRST = ("a", "b", "c")
ALL = (*FIRST, "d")
PLACES = {
    "everything": Place("all", FIRST),
    "sets": Place("toolset", FIRST),
    "desk": Place("toolset", FIRST, per_session=True),
    "whole": Place("servers", ("a", "b")),
    "find": Place("search", FIRST),
    "strict": Place("search", ("b", "a"), call_hidden=False),
}
OFF: Tool = ("a", "echo")
"""What a reload switches off behind `whole` and `strict`, and on again."""
FRONTS = 2
_ERAS = {"a": "legacy", "b": "modern", "c": "modern", "d": "legacy"}
_SETTINGS: dict[str, dict[str, object]] = {
    "a": {"hide_after": "60s", "strict_listing": False},  # nobody notices its crashes
    "b": {"strict_listing": True}, "c": {"strict_listing": True}, "d": {},
}  # fmt: skip
_EXTRA = """
[gateway]
fronts = 2
[namespaces.default]
servers = ["*"]
[namespaces.two]
servers = ["a", "b"]
[namespaces.turned]
servers = ["b", "a"]
[endpoints.everything]
namespace = "default"
[endpoints.sets]
namespace = "default"
exposure = "toolset"
[endpoints.desk]
namespace = "default"
exposure = "toolset"
view_scope = "session"
[endpoints.whole]
namespace = "two"
exposure = "servers"
view_scope = "principal"
[endpoints.find]
namespace = "default"
exposure = "search"
view_scope = "principal"
[endpoints.strict]
namespace = "turned"
exposure = "search"
view_scope = "principal"
call_hidden = false
"""
_SWITCHED_OFF = """
[namespaces.two.tools."a.echo"]
enabled = false
[namespaces.turned.tools."a.echo"]
enabled = false
"""


class World(Gateway):
    """`pids`: of the servers that run."""

    def __init__(self) -> None:
        super().__init__({})
        self.pids: dict[str, int] = {}
        self._configure(FIRST, off=False)

    # What an operator orders

    def order(self, kind: str, /, endpoint: str = "", **order: Any) -> bool:
        """About tool sets. Was it carried out?"""
        asked = {"order": {"type": kind, **order}, "endpoint": endpoint}
        try:
            self.ask("toolsets-change", asked)
        except Failed:
            return False
        return True

    def toolsets(self) -> dict[str, int]:
        """How many tools each has."""
        told = self.ask("toolsets", {"names": []})["toolsets"]
        return {one["name"]: len(one["tools"]) for one in told}

    def stop_server(self, name: str) -> None:
        """It starts again with the next gateway."""
        self.ask("stop", {"names": [name], "this_run": True})
        self.until_server(name, "stopped")

    def start_server(self, name: str) -> None:
        self.ask("start", {"names": [name]})
        self.until_server(name, "ready")

    def reload(self, servers: tuple[str, ...], *, off: bool) -> None:
        """`off`: some tool is switched off."""
        self._configure(servers, off=off)
        self.ask("reload", {})

    # What nobody orders

    def crash(self, name: str) -> None:
        """It comes back at once."""
        before = self.pids[name]
        os.kill(before, signal.SIGKILL)
        until(lambda: self.server(name)["pid"] not in (0, before), f"{name} is another process")
        self.until_server(name, "ready")

    def break_server(self, name: str) -> None:
        """It ends, and does not start."""
        self.bar(name).touch()
        os.kill(self.pids[name], signal.SIGKILL)
        self.until_server(name, "error")

    def mend_server(self, name: str) -> None:
        """An operator starts it. It is stopped before that: were it back by itself for the second
        time within a minute, its tools would stay away for the rest of that (`damping`)."""
        self.stop_server(name)
        self.bar(name).unlink(missing_ok=True)
        self.start_server(name)

    def kill_front(self, at: int) -> None:
        before = self.status()["fronts"][at]["pid"]
        os.kill(before, signal.SIGKILL)
        self.until_fronts(but=before)

    def kill(self) -> None:
        """All of it at once, and start it again."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(timeout=20)
        until(lambda: not self.left(), "nothing of the gateway is left")
        self.start()
        self.until_fronts()

    # Waiting, and what is read

    def until_server(self, name: str, state: str) -> None:
        def is_so() -> bool:
            found = self.server(name)
            self.pids[name] = found["pid"]
            if state == "ready":
                return bool(found["state"] in ("ready", "active") and found["pid"])
            return bool(found["state"] == state)

        until(is_so, f"{name} is {state}")

    def until_fronts(self, but: int = 0) -> None:
        """All serve, and none of them is this process."""

        def serve() -> bool:
            fronts = self.status()["fronts"]
            ready = [one["pid"] for one in fronts if one["state"] == "ready"]
            return len(ready) == len(fronts) == FRONTS and but not in ready

        until(serve, "all fronts serve")

    def bar(self, name: str) -> Any:
        """While this file is there, the server does not start."""
        return self.folder / f"no-{name}"

    def _configure(self, servers: tuple[str, ...], *, off: bool) -> None:
        self.extra = _EXTRA + (_SWITCHED_OFF if off else "")
        self.write({
            name: {
                **fake(
                    *("--era", _ERAS[name], "--only", ",".join(TOOLS)),
                    *("--unless", str(self.bar(name))),
                ),
                **_SETTINGS[name],
            }
            for name in servers
        })  # fmt: skip
