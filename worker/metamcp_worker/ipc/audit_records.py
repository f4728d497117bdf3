"""Records of the audit: their members, the hash chain over them, their form on the way to the disk.

Owns: what a record has, the hash of a row, checking a chain, the frames between a process that
makes records and the one that writes them. Never: which calls get a record (`call_audit`), files
(`segments`), sockets (`audit_link`).

A row is (seq, body, hash): `seq` counts from 1 without a gap over all segments, `body` is JSON as
the process that created the record wrote it, and hash = SHA-256(hash before, seq in 8 bytes, body).

    to the writer    size (4 bytes), count (4), number of the first record (8); then `size` bytes:
                     the bodies, one a line. The first frame has count 0 and the name of its sender.
    to the sender    number of the last record this is about (8), error number (4), 0: committed
"""

import hashlib
import struct
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Raw, Struct, json

from metamcp_worker.ipc.envelope import Message

VERSION = 1
"""Form of the records; a reader refuses a higher one."""
FOLDER = "audit"
"""Folder of the segments in the state directory."""
ROLE = "audit"
"""Name of the writer's process."""
SPOOLS = "spool"
"""Folder of the spools, in that of the segments."""
RESERVE, RESERVE_BYTES = "reserve", 16 * 1024 * 1024
"""Name and size of the file in the folder of the segments that takes records while the disk is
full. The audit keeps this much of the disk back, so no other program can use it up."""
SALT = "salt"
SALT_BYTES = 32
FRAME_BYTES_MAX = 64 * 1024 * 1024
"""Maximum bytes of the records in one frame."""
FRAME = struct.Struct("<IIQ")
VERDICT = struct.Struct("<Qi")
ORIGIN_BYTES = 16
"""Bytes of the name of a sender: random hexadecimal digits, new with each of its lives."""
START = b"\0" * 32
"""Hash before the first record."""

OFF, METADATA, REDACTED, FULL = "off", "metadata", "redacted", "full"
CLIENT_CHARS_MAX = 64
SUFFIX = ".sqlite"
#: Methods whose answers wait until their record is on the disk.
COMMITTED = frozenset({"tools/call", "resources/read", "prompts/get"})
#: Methods that list something; their answers do not wait.
LISTS = frozenset({
    "tools/list", "prompts/list", "resources/list", "resources/templates/list",
})  # fmt: skip
#: Word of a record for each method.
EVENTS = {"tools/call": "call", "resources/read": "read", "prompts/get": "prompt"}
ALL_EVENTS = (
    "call", "read", "prompt", "list", "refused", "auth", "order", "gateway", "gap", "sealed",
    "removed",
)  # fmt: skip
OUTCOMES = ("ok", "tool_error", "error", "cancelled", "refused")


class AuditRecord(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Record of one event; empty members are left out. `ts`: nanoseconds since the epoch;
    `origin`, `n`: sender and its own number; `worker`: role of the sender.

    `event`: `call`, `read`, `prompt`, `list`, `auth`, `order` (of an operator), `gateway` (from the
    journal), `gap`, `sealed`, `removed`. `key`: id of the API key; `principal`: its name, a
    pseudonym for OAuth; `session`, `uri`, `args_hmac`: pseudonyms under the salt of this audit.
    `tool`: as the server names it; `exposed`: as the client does. `outcome`: `ok`, `tool_error`,
    `error`, `cancelled` or `refused`; `code`: of the JSON-RPC error. `arguments`, `result`: with
    the levels `redacted` and `full`. `run`: id of the run of code that the call is; `parent`: id of
    the run of code or of a workflow that made the call. `consent`: who agreed to the
    call and how far, or why it was refused. `text`: a sentence; `count`: of lost
    records, or of a segment; `digest`: SHA-256 of the file of a segment, `last`: its last sequence
    number and hash.
    """

    ts: int
    n: int
    origin: str
    event: str
    worker: str = ""
    workspace: str = ""
    key: str = ""
    principal: str = ""
    auth: str = ""
    session: str = ""
    client: str = ""
    protocol: str = ""
    endpoint: str = ""
    server: str = ""
    tool: str = ""
    exposed: str = ""
    uri: str = ""
    method: str = ""
    args_bytes: int = 0
    args_hmac: str = ""
    result_bytes: int = 0
    outcome: str = ""
    code: int = 0
    ms: float = 0.0
    trace: str = ""
    run: str = ""
    parent: str = ""
    consent: str = ""
    arguments: str = ""
    result: str = ""
    who: str = ""
    text: str = ""
    count: int = 0
    segment: str = ""
    digest: str = ""
    first: int = 0
    last: int = 0
    last_hash: str = ""


class AuditOn(Message, frozen=True, kw_only=True):
    """First message to the writer, with its acceptor as descriptor. `folder`: of the segments;
    `durable`: whether a commit survives a loss of power; `retention_s`: age at which a segment is
    removed; `segment_bytes`: size at which the next one begins."""

    folder: str
    durable: bool
    retention_s: float
    segment_bytes: int


class AuditFigures(Message, frozen=True, kw_only=True):
    """Records since the writer began: `records` written; `lost`: reported in gaps; `refused`: not
    written when they came, because the disk was full."""

    counts: dict[str, int]


class ChainRow(Struct, frozen=True, gc=False):
    seq: int
    body: bytes
    hash: bytes


class ChainBreak(Struct, frozen=True):
    """First place at which a chain does not hold. `seq`: of the row; `why`: a sentence."""

    seq: int
    why: str


def row_hash(before: bytes, seq: int, body: bytes) -> bytes:
    return hashlib.sha256(b"%b%b%b" % (before, seq.to_bytes(8), body)).digest()


def iter_chain_rows(before: bytes, seq: int, bodies: Iterable[bytes]) -> Iterator[ChainRow]:
    """Yield the rows for these records, behind the row `seq` with the hash `before`."""
    for body in bodies:
        seq += 1
        before = row_hash(before, seq, body)
        yield ChainRow(seq, body, before)


def check(before: bytes, seq: int, rows: Iterable[ChainRow]) -> ChainBreak | None:
    """Return the first break of a chain behind the row `seq` with the hash `before`."""
    for row in rows:
        seq += 1
        if row.seq != seq:
            return ChainBreak(seq, f"record {seq} is missing; the next one is {row.seq}")
        if row.hash != row_hash(before, seq, row.body):
            return ChainBreak(seq, f"record {seq}, or one of its neighbours, was changed")
        before = row.hash
    return None


def pseudonym(salt: bytes, text: str | bytes) -> str:
    """Return 16 hexadecimal digits for a text, which do not show it to people without the salt."""
    data = text.encode("utf-8", "replace") if isinstance(text, str) else text
    keyed = _KEYED.get(salt)
    if keyed is None:
        _KEYED.clear()  # a process has one salt
        keyed = _KEYED[salt] = hashlib.blake2b(key=salt, digest_size=8)
    digest = keyed.copy()
    digest.update(data)
    return digest.hexdigest()


_KEYED: "dict[bytes, hashlib.blake2b]" = {}
"""Begun digests by salt: a copy takes half the time of a new one."""


encoded = json.Encoder().encode
"""Return the body of a record."""


def members(record: AuditRecord) -> bytes:
    """Return the members behind `ts` and `n` of records that have these in common."""
    return encoded(record).partition(b'"n":%d,' % record.n)[2][:-1]


def behind(texts: Mapping[str, str]) -> bytes:
    """Return more members of a record, each with a comma before it; empty texts are left out."""
    return b"".join(
        b',"%b":%b' % (name.encode(), encoded(text)) for name, text in texts.items() if text
    )


def of_call(ts: int, n: int, common: bytes, end: bytes, outcome: str, seconds: float) -> bytes:
    """Return the body of the record of a call. `common`: `members` of calls of this kind; `end`:
    the others, each with a comma before it."""
    return b'{"ts":%d,"n":%d,%b%b,"outcome":"%b","ms":%.3f}' % (
        ts, n, common, end, outcome.encode(), seconds * 1000,
    )  # fmt: skip


def to_export_record(row: ChainRow, before: str) -> dict[str, object]:
    """Return a row as people and exports get it. `before`: the hash of the row before."""
    members = json.decode(row.body, type=dict[str, object])
    return {"v": VERSION, "seq": row.seq, **members, "prev_hash": before, "hash": row.hash.hex()}


def read(body: bytes | Raw) -> AuditRecord:
    """Return the record in a body. Raises msgspec.MsgspecError."""
    return json.decode(body, type=AuditRecord)


def segment_name(first: int) -> str:
    """Return the name of the segment file whose first record has this number."""
    return f"{first:015d}{SUFFIX}"


def is_segment(name: str) -> bool:
    return name.endswith(SUFFIX) and name.removesuffix(SUFFIX).isdigit()
