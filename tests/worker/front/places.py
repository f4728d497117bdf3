"""What a built-in tool may look at, made of true views: servers, what is in view, tool sets."""

from typing import Any

from msgspec.structs import replace

from metamcp_worker.access import gate
from metamcp_worker.builtin_tools import builtin
from metamcp_worker.builtin_tools.builtin import (
    Decision,
    OrderAndThen,
    ToolContext,
    ToolReply,
    ToolSearch,
)
from metamcp_worker.catalog.views import View
from metamcp_worker.front_calls.front_views import Viewers, builtin_family
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.disclosure import (
    Exposure,
    OrderOutcome,
    Pair,
    ToolSet,
    ViewContent,
    ViewOwner,
)
from metamcp_worker.ipc.messages import ServerState
from metamcp_worker.ipc.saved_scripts import Script
from metamcp_worker.ipc.server_catalog import ServerCatalogue
from metamcp_worker.ipc.spec import EndpointSpec, FrontSpec

from .offers import endpoint

HERE = ViewOwner("default", gate.LOCAL)


def toolset(name: str, *tools: Pair, description: str = "") -> ToolSet:
    return ToolSet(name, tools, description, created=1.0, updated=2.0)


class Place:
    """An endpoint with these servers, all of them there; None: nothing is known of that one yet."""

    def __init__(
        self, exposure: Exposure, *toolsets: ToolSet, style: str = "flat", **servers: Any
    ) -> None:
        self.viewers = Viewers()
        self.toolsets = {one.name: one for one in toolsets}
        self.scripts: dict[str, Script] = {}
        self.states: dict[str, ServerState] = {}
        self.configure(replace(endpoint(*servers, style=style), exposure=exposure))
        for server, catalogue in servers.items():
            if catalogue is not None:
                self.put(server, catalogue)

    def configure(self, spec: EndpointSpec) -> None:
        self.spec = spec
        self.viewers.configure(FrontSpec(version="1", endpoints=(spec,), hosts=()))
        self.viewers.refresh()

    def put(self, server: str, catalogue: ServerCatalogue) -> None:
        self.viewers.put(server, catalogue)
        self.up(server)

    def up(self, server: str) -> None:
        self.state(ServerState(server=server, state="ready", listed=True))

    def down(self, server: str, message: str = "it exited with 3") -> None:
        self.state(ServerState(server=server, state="error", listed=False, message=message))

    def state(self, news: ServerState) -> None:
        self.states[news.server] = news
        self.viewers.set_listed(news.server, news.listed)
        self.viewers.refresh()

    def show(self, shown: ViewContent) -> None:
        self.viewers.show({HERE: shown})
        self.viewers.refresh()

    @property
    def view(self) -> View:
        view = self.viewers.get("default")
        assert view is not None
        return view

    @property
    def listed(self) -> list[str]:
        """What clients see, by name."""
        return [entry.key for entry in self.view.merged.lists["tools"]]

    def context(self) -> ToolContext:
        return ToolContext(
            self.view.spec,
            self.viewers.find_merged("default"),
            self.view.shown,
            self.toolsets,
            self.states,
            self.viewers.is_listed,
            self.viewers.index("default").search,
            lambda when: f"at {when:.0f} s",
            self.scripts,
        )

    def decide(self, name: str, /, **arguments: Any) -> Decision:
        tool = builtin_family(self.spec).tools[name]
        return tool.decide(codec.dump(arguments), self.context())

    def reply(self, name: str, /, **arguments: Any) -> ToolReply:
        """What a tool answers at once, or when it has searched by words alone."""
        decision = self.decide(name, **arguments)
        if isinstance(decision, ToolSearch):
            decision = decision.then((), self.context())
        assert isinstance(decision, ToolReply), decision
        return sent(decision)

    def ask(self, name: str, /, **arguments: Any) -> OrderAndThen:
        """What a tool wants of the supervisor."""
        decision = self.decide(name, **arguments)
        assert isinstance(decision, OrderAndThen), decision
        return decision

    def done(self, ask: OrderAndThen, after: ViewContent, made: ToolSet | None = None) -> ToolReply:
        """The supervisor carried the order out: this is in view now."""
        before = self.view.shown
        self.show(after)
        return sent(ask.then(OrderOutcome("", before, after, made), self.context()))

    def refused(self, ask: OrderAndThen, why: str) -> ToolReply:
        """The supervisor did not; nothing is other than before."""
        shown = self.view.shown
        return sent(ask.then(OrderOutcome(why, shown, shown), self.context()))


def sent(reply: ToolReply) -> ToolReply:
    """It can be: what clients get is read again, so that it is JSON and a result."""
    result = codec.value(builtin.result(reply, modern=False))
    assert result["content"] == [{"type": "text", "text": reply.text}]
    assert result["isError"] is reply.failed
    return replace(reply, structured=result.get("structuredContent"))


def structured(reply: ToolReply) -> dict[str, Any]:
    assert reply.structured is not None
    return dict(reply.structured)
