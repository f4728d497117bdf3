"""Connections to PostgreSQL, for the store of a gateway and for the runs of workflows.

Owns: limits of time of a connection on both sides, and errors as sentences without the password.
Never: schemas, statements, when to connect again.
"""

from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

CONNECT_S_MAX = 10
SILENCE_S = 10
"""Seconds without a word after which either side asks whether the other is there."""
SILENCE_S_MAX = 25
"""Seconds without an answer after which either side gives up the session, and with it its locks."""
_SETTINGS = {
    "tcp_keepalives_idle": str(SILENCE_S),
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": f"{SILENCE_S_MAX}s",
}
"""Settings of a session on the side of the database."""

Connection = psycopg.Connection[tuple[Any, ...]]


def connect(url: str, application: str) -> Connection:
    """Return a new connection, which both sides give up when the other is silent. Raises
    psycopg.Error."""
    return psycopg.connect(
        url, connect_timeout=CONNECT_S_MAX, application_name=application,
        keepalives=1, keepalives_idle=SILENCE_S, keepalives_interval=5, keepalives_count=3,
        tcp_user_timeout=SILENCE_S_MAX * 1000,
    )  # fmt: skip


def begin_session(connection: Connection, schema: str, answer_s: float) -> None:
    """Set the schema and the limits of a session, which has no transaction of its own from now on.
    `answer_s`: of a statement, and of silence within a transaction. Raises psycopg.Error."""
    connection.autocommit = True
    limit = f"{answer_s:.0f}s"
    settings = {
        **_SETTINGS,
        "search_path": schema,
        "statement_timeout": limit,
        "idle_in_transaction_session_timeout": limit,
    }
    for name, value in settings.items():
        connection.execute("SELECT set_config(%s, %s, false)", (name, value))


def explain_error(url: str, error: Exception, failure: str) -> str:
    """Return a sentence about an error, without the password in the URL. `failure`: what failed,
    for example "the store cannot be read"."""
    try:
        parts = conninfo_to_dict(url)
    except psycopg.Error:
        return f"{failure}: its URL is not valid; write postgresql://USER@HOST/DATABASE"
    text = str(error).strip() or "it does not answer"
    reason = text.splitlines()[0].rpartition("failed: ")[2]
    if password := str(parts.get("password") or ""):
        reason = reason.replace(password, "[secret]")
    return f"{failure} at {parts.get('host') or 'this machine'}: {reason}"
