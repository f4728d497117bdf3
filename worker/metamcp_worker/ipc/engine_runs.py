"""Messages about runs of the engine (agents, suggestions, workflows), between a front and it.

Owns: their fields, limits and frames; the answer of the process that reads files of workflows
(`engine.load`). Never: the engine (`engine`), carrying out what a run asks for
(`front_steps.engine_calls_io`), the meaning of a definition (`engine.definition`).

A front connects to the engine by its connector (`packets`) and sends frames: 4 bytes with the
size, little-endian, then the message as JSON. Values of users are raw JSON on the whole way. The
engine has no way to servers of its own: each call, search, run of code and question of a run goes
to a front, which makes it for the owner of the run like a request of that client.
"""

from collections.abc import Mapping
from typing import Annotated, Final, Literal, TypeAlias

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from metamcp_worker.ipc import messages
from metamcp_worker.ipc.code_runs import FRAME, FRAME_BYTES_MAX
from metamcp_worker.ipc.envelope import Message

__all__ = ["FRAME", "FRAME_BYTES_MAX"]  # the other names as well

ROLE = "engine"
"""Name of the process of the engine."""
JOURNAL = "workflows.db"
"""Database of runs, in the state directory."""
Method = Literal[
    "agent", "suggest",
    "workflows", "workflow/run", "workflow/runs", "workflow/status", "workflow/cancel",
    "workflow/decide", "workflow/answer", "workflow/graph",
]  # fmt: skip
"""Orders to the engine: the last two words of tools and verbs are the same."""
CALLING = frozenset[Method]({"agent", "workflow/run"})
"""Orders that call servers."""
Kind = Literal["call", "server", "tools", "describe", "catalog", "code", "sample", "elicit"]
Trouble = Literal["", "error", "timeout", "unavailable"]
"""Why a request of the engine has no result: a tool's or the gateway's error, its time is over, or
the server or the front is not there (then the call may have happened)."""

PARKED: Final = frozenset({"needs_decision", "needs_answer"})
"""Statuses of runs that wait for a person."""
PARKED_SHOWN_MAX: Final = 64
"""Maximum of such runs in the figures of the engine, which are one packet."""
STEP_SHOWN_CHARACTERS_MAX: Final = 256
SHIPPED: Final = "metamcp:"
"""Beginning of the path of a workflow that is shipped; alone it means the rules that are."""
TASK_CHARACTERS_MAX: Final = 20_000
_SHOWN_CHARACTERS_MAX = 60

Place: TypeAlias = tuple[str | int, ...]


class RunOwner(Struct, frozen=True):
    """Client for whom a run acts, kept with the run. Fields as in `access.gate.Principal`;
    `endpoint`: its name; `modern`: era of the client. The front makes a request of it again, and
    refuses it when its key is revoked, its credential has expired, or its endpoint is gone."""

    endpoint: str
    name: str
    workspace: str = ""
    scopes: tuple[str, ...] | None = None
    servers: tuple[str, ...] | None = None
    key: str = ""
    auth: str = "none"
    expires: float = 0.0
    held: tuple[str, ...] = ()
    modern: bool = True
    label: str = ""


class FrontHello(Message, frozen=True, kw_only=True):
    """Either side's first message of a front: this connection makes calls. A connection without it
    (the supervisor's, for `metamcp workflow`) only gives orders."""

    front: str


class EngineOrder(Message, frozen=True, kw_only=True):
    """Front or supervisor: do this. `id`: unique on its connection; `params`: raw, the arguments of
    the tool or verb; `owner`: for whom; `progress`: whether progress is wanted; `asks`: whether the
    client can be asked, by `elicit`; `samples`: whether it lends its model, by `sample`; `trace`:
    `traceparent` of the call that gives the order, empty if it is not traced."""

    id: int
    method: Method
    owner: RunOwner
    params: Raw = Raw(b"{}")
    progress: bool = False
    asks: bool = False
    samples: bool = False
    trace: str = ""


class AgentLimits(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Limits that a call may lower; 0 for those of `[ai]`. `timeout`: seconds; `cost`: in the
    currency of the prices."""

    steps: Annotated[int, Meta(ge=1)] = 0
    tokens: Annotated[int, Meta(ge=1)] = 0
    timeout: Annotated[float, Meta(gt=0)] = 0.0
    cost: Annotated[float, Meta(gt=0)] = 0.0


class AgentArguments(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Arguments of `agent`, and of the tool `run_agent`."""

    task: Annotated[str, Meta(min_length=1, max_length=TASK_CHARACTERS_MAX)]
    dry_run: bool = False
    limits: AgentLimits = AgentLimits()


class SuggestionArguments(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Arguments of `suggest`, and of the tool `suggest_workflow`. `refine`: a model adapts what a
    rule suggests."""

    task: Annotated[str, Meta(min_length=1, max_length=TASK_CHARACTERS_MAX)]
    refine: bool = False


class RunOrder(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Arguments of `workflow/run`, and of the tool `run_workflow`. `wait`: whether to wait for the
    end, or how long."""

    name: str = ""
    definition: Raw | UnsetType = UNSET
    inputs: Raw = Raw(b"{}")
    wait: bool | str = True


class AbandonOrder(Message, frozen=True, kw_only=True):
    """Front: nobody waits for this order. Agents and suggestions end; a workflow goes on."""

    id: int


class OrderProgress(Message, frozen=True, kw_only=True):
    """Engine: an order goes on. `progress` grows; `total`: 0 if not known. Operators also get each
    state of a `step`, without progress: path and status as of `workflow/status`. `span`: of a run
    or a step of a traced order that has ended, without anything else; `id` is 0 then."""

    id: int
    progress: float = 0.0
    total: float = 0.0
    message: str = ""
    step: str = ""
    state: str = ""
    span: messages.Span | None = None


class OrderDone(Message, frozen=True, kw_only=True):
    """Engine: an order is over. `text`: for a model or a person; `structured`: raw, the same as an
    object; `failed`: the tool reports a failure."""

    id: int
    text: str
    structured: Raw = Raw(b"{}")
    failed: bool = False


class HostAsk(Message, frozen=True, kw_only=True):
    """Engine: do this for the owner. `call`: unique on the connection; `order`: id of an order of
    this connection whose client may be asked, 0 for none. `kind`:
    `call`: tool `name` as exposed, with `arguments`; `server`: tool `name` of the server `server`;
    `tools`: search for `name` (all if empty), result as of `mcp.tools()`; `describe`: the result of
    `describe_tool` for `name`; `catalog`: what the endpoint offers, result as of `get_catalog`;
    `code`: arguments as of run_code, result its structuredContent; `sample`: arguments are params
    of `sampling/createMessage`; `elicit`: arguments are params of `elicitation/create`.
    `meta`: raw object, added to `_meta` of the call (`io.metamcp/idempotency-key`); `run`: id of
    the run, `parent` in the audit; `timeout_ms`: 0 for the limit of the endpoint; `consent`: the
    user agrees to each call of the code first whose tool may destroy something."""

    call: int
    owner: RunOwner
    kind: Kind
    name: str = ""
    server: str = ""
    arguments: Raw = Raw(b"{}")
    meta: Raw = Raw(b"{}")
    run: str = ""
    order: int = 0
    timeout_ms: int = 0
    consent: bool = False


class HostDrop(Message, frozen=True, kw_only=True):
    """Engine: cancel this call; no answer follows."""

    call: int


class HostDone(Message, frozen=True, kw_only=True):
    """Front: answer. `result`: raw, the whole result of the method (CallToolResult for `call` and
    `server`, also with `isError`); with `trouble` and `error`, a sentence, it has not any.
    `repeatable`: for `call` and `server`, whether the tool's annotations say that it may run twice
    (`readOnlyHint` or `idempotentHint`). `lost`: a process of the gateway ended with the request,
    so it may have happened."""

    call: int
    result: Raw = Raw(b"null")
    trouble: Trouble = ""
    error: str = ""
    repeatable: bool = False
    lost: bool = False


class AiSettings(Struct, frozen=True):
    """Table `[ai]`. `provider`: `openai` (any compatible endpoint), `anthropic`; `key`: empty for
    none; `tokens_max`, `steps_max`, `timeout_ms`: limits of one agent; `cost_max`: in the currency
    of the prices, 0 for none; `input_price`, `output_price`: per million tokens; `consent`: as of
    `HostAsk`."""

    provider: Literal["openai", "anthropic"]
    url: str
    model: str
    key: str = ""
    steps_max: int = 20
    tokens_max: int = 200_000
    timeout_ms: int = 300_000
    answer_tokens_max: int = 4096
    cost_max: float = 0.0
    input_price: float = 0.0
    output_price: float = 0.0
    consent: bool = True


class EngineOn(Message, frozen=True, kw_only=True):
    """Settings of the engine, in an `EngineSettings`; sent again when the configuration changes.
    `journal`: path of the database of runs; `database`: URL of one in PostgreSQL instead, which may
    have a password in it; `definitions`: workflows by workspace and name, each
    raw as of `engine.definition` (checked by the supervisor's loader); `rules`: of suggestions,
    raw; `sync`: `full` or `normal`; `keep_s`: seconds that ended runs are kept; `runs_max`:
    workflow runs under way at once, more wait."""

    journal: str
    database: str = ""
    ai: AiSettings | None = None
    definitions: Mapping[str, Mapping[str, Raw]] = {}
    rules: tuple[Raw, ...] = ()
    sync: Literal["full", "normal"] = "full"
    keep_s: float = 30 * 86400.0
    runs_max: int = 64


class EngineSettings(Message, frozen=True):
    """Supervisor: an `EngineOn`, as JSON in the first descriptor: definitions may be larger than a
    packet. The second descriptor, the acceptor, comes with the first message alone."""


class ReportedRun(Struct, frozen=True, omit_defaults=True):
    """Run, as the engine reports it. `step`: path of the step that failed or waits for a person;
    `error`: why it failed or waits; `created`, `ended`: seconds since the epoch."""

    run: str
    workflow: str
    status: str
    step: str = ""
    error: str = ""
    created: float = 0.0
    ended: float | None = None


class EngineFigures(Message, frozen=True, kw_only=True):
    """Engine to supervisor, when they have changed: orders since the process began by
    `METHOD:OUTCOME`; runs of workflows now by status; `parked`: the newest runs that wait for a
    person, with the step, cut to STEP_SHOWN_CHARACTERS_MAX; `trouble`: sentence why runs cannot be
    used."""

    counts: dict[str, int]
    runs: Mapping[str, int] = {}
    parked: tuple[ReportedRun, ...] = ()
    trouble: str = ""

    @property
    def waiting_count(self) -> int:
        """Number of runs that wait for a person."""
        return sum(self.runs.get(status, 0) for status in PARKED)


class DefinitionProblem(Struct, frozen=True):
    """Mistake in a definition. `place`: keys and indices down to it; `message`: the end of a
    sentence; `file` and `line`: where it is written, empty and 0 if not in a file."""

    place: Place
    message: str
    file: str = ""
    line: int = 0

    @property
    def path(self) -> str:
        text = ""
        for key in self.place:
            name = f"[{key}]" if isinstance(key, int) else shorten(key)
            text += name if isinstance(key, int) or not text else f".{name}"
        return text

    def __str__(self) -> str:
        location = (
            f"{self.file}:{self.line}: " if self.line else f"{self.file}: " if self.file else ""
        )
        return (
            f"{location}{self.path} {self.message}" if self.place else f"{location}{self.message}"
        )


class SuggestionRule(Struct, frozen=True):
    """Rule of suggestions. `keywords`: words or phrases in lower case; `match`: whether one of them
    or all have to be in a task; `template`: a workflow as plain data."""

    name: str
    keywords: tuple[str, ...]
    match: Literal["any", "all"]
    template: dict[str, object]


class GraphGroup(Struct, frozen=True):
    """Steps inside of a step that run one after the other. `head`: `each` for those of a foreach,
    the condition of a case, empty for a branch of parallel steps."""

    head: str
    steps: tuple["GraphStep", ...]


class GraphStep(Struct, frozen=True, kw_only=True):
    """Step of a workflow in a drawing. `path`: as of `workflow/status`, with `[]` for each foreach
    around it; `kind`: the key of the step in a definition; `text`: what it does, on one line."""

    path: str
    kind: str
    text: str
    groups: tuple[GraphGroup, ...] = ()


class WorkflowGraph(Struct, frozen=True, kw_only=True):
    """Answer to `workflow/graph`."""

    name: str
    description: str = ""
    steps: tuple[GraphStep, ...]


class LoadedFiles(Struct):
    """Content of files. `definitions`: by workspace and name, `rules`: of suggestions, both plain
    data; `files`: files and folders that were looked at."""

    definitions: dict[str, dict[str, Raw]] = {}
    rules: list[Raw] = []
    problems: list[DefinitionProblem] = []
    files: list[str] = []


def shorten(text: str) -> str:
    """Return a text for a message: shortened, with characters that control a terminal escaped."""
    cut = text if len(text) <= _SHOWN_CHARACTERS_MAX else text[: _SHOWN_CHARACTERS_MAX - 1] + "…"
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in cut)
