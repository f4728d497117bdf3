"""Servers of a client's file: taken out of it, and put back to the byte."""

from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from metamcp_supervisor.client_files import clients, texts
from metamcp_supervisor.client_files.clients import CLIENTS, FileFormat
from metamcp_supervisor.client_files.texts import TakenServers
from metamcp_supervisor.config.document import table_of
from tests.supervisor.clienthome import FILES

WORDS = ("/usr/bin/metamcp", "connect", "--start")
JSON = CLIENTS["claude-code"].kept
TWO = """{
  "mcpServers": {
    "a": {"command": "a",   "args": [ "x" ]},
    "b": {
      "url": "https://b.example/mcp"
    }
  },
  "startups": 1,
  "projects": {"/p": {"mcpServers": {"c": {"command": "c"}}}}
}
"""
LOCAL = replace(JSON, place=("projects", "/p", "mcpServers"))
WITH_SERVERS = sorted(FILES.keys() - {"zed", "cline", "gemini-cli"})


def ours(kept: FileFormat) -> dict[str, object]:
    return clients.entry(kept.shape, "metamcp", words=WORDS)


def servers(kept: FileFormat, text: str) -> dict[str, Mapping[str, object]]:
    found = texts.entries(kept, text).items()
    return {name: table for name, value in found if (table := table_of(value)) is not None}


def all_of(kept: FileFormat, text: str) -> TakenServers:
    return TakenServers(kept, "metamcp", servers(kept, text))


def without(text: str, *tables: TakenServers) -> str:
    for each in tables:
        text = texts.without_servers(text, each, ours(each.kept))
    return text


@pytest.mark.promise("M117")
@pytest.mark.parametrize("client", WITH_SERVERS)
def test_one_entry_stays_and_the_old_bytes_come_back(client: str) -> None:
    kept, text = CLIENTS[client].kept, FILES[client][1].removeprefix("\ufeff")
    every = all_of(kept, text)
    assert every.entries
    made = without(text, every)
    assert servers(kept, made) == {"metamcp": ours(kept)}
    record = texts.read_record(texts.record([every]), kept)
    assert texts.put_back(made, text, record) == (text, ())


@pytest.mark.promise("M117")
def test_what_was_edited_elsewhere_stays_and_the_servers_have_their_old_bytes() -> None:
    tables = all_of(JSON, TWO), all_of(LOCAL, TWO)
    made = without(TWO, *tables)
    assert '"c"' not in made
    edited = made.replace('"startups": 1', '"startups": 77')
    text, left = texts.put_back(edited, TWO, tables)
    assert text == TWO.replace('"startups": 1', '"startups": 77')
    assert not left


def test_a_server_that_was_added_meanwhile_stays_beside_those_that_come_back() -> None:
    every = all_of(JSON, TWO)
    edited = texts.put(JSON, without(TWO, every), "new", {"command": "n"})
    text, left = texts.put_back(edited, TWO, [every])
    assert servers(JSON, text) == {**servers(JSON, TWO), "new": {"command": "n"}}
    assert not left


def test_a_server_that_was_written_again_with_other_settings_stays_and_is_named() -> None:
    every = all_of(JSON, TWO)
    edited = texts.put(JSON, without(TWO, every), "a", {"command": "other"})
    text, left = texts.put_back(edited, TWO, [every])
    assert servers(JSON, text) == {**servers(JSON, TWO), "a": {"command": "other"}}
    assert left == ("a",)


def test_servers_come_back_where_our_entry_was_removed_by_hand() -> None:
    every = all_of(JSON, TWO)
    edited = texts.drop(JSON, without(TWO, every), "metamcp", TWO)
    assert edited is not None
    text, left = texts.put_back(edited, TWO, [every])
    assert servers(JSON, text) == servers(JSON, TWO)
    assert not left


def test_a_server_that_was_taken_later_comes_back_from_the_record() -> None:
    first = all_of(JSON, TWO)
    later = texts.put(JSON, without(TWO, first), "d", {"command": "d"})
    second = TakenServers(JSON, "metamcp", {"d": {"command": "d"}})
    record = texts.merge_records([first], [second])
    assert len(record) == 1
    text, _ = texts.put_back(without(later, second), TWO, record)
    assert servers(JSON, text) == {**servers(JSON, TWO), "d": {"command": "d"}}
