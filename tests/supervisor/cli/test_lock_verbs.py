"""`metamcp lock` and `metamcp tools` as they are called, on catalogues that a gateway has left."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from msgspec import Raw

from metamcp_supervisor.__main__ import main
from metamcp_supervisor.approval import lock_io
from metamcp_supervisor.approval.lock import Lock, definitions, text
from metamcp_supervisor.config.reload import hash_launch
from metamcp_worker.ipc import server_catalog
from metamcp_worker.ipc.server_catalog import ServerCatalogue
from tests.supervisor.configs import loaded
from tests.supervisor.locked import ADDITIVE, BREAKING, approved, lock, tool

CONFIG = """
[gateway]
state_dir = "state"
[servers.files]
command = ["x"]
[servers.notes]
command = ["y"]
"""


class Place:
    """A folder with a configuration, and what its servers offered last."""

    def __init__(self, folder: Path, config: str = CONFIG) -> None:
        self.folder = folder
        self.lock = folder / "metamcp.lock"
        (folder / "metamcp.toml").write_text(config)

    def offer(self, server: str, *tools: bytes) -> None:
        config = loaded(self.folder)
        name = f"{hash_launch(config.servers[server])}.json"
        path = self.folder / "state" / "catalogue" / server / name
        path.parent.mkdir(parents=True, exist_ok=True)
        offered = ServerCatalogue(
            protocol="2025-11-25",
            serverInfo=Raw(b'{"name":"mcp-files","version":"1.2","title":"x"}'),
            tools=tuple(map(Raw, tools)),
        )
        path.write_bytes(server_catalog.pack(offered))

    def saw(self, server: str, *tools: bytes) -> Path:
        """What it offered when it was first seen."""
        known = definitions(loaded(self.folder).servers.values())
        seen = self.folder / "state" / lock_io.SEEN
        lock_io.save(seen, lock(**{known[server]: approved(*tools)}))
        return seen

    def run(self, *arguments: str) -> Result:
        where = str(self.folder / "metamcp.toml")
        return CliRunner().invoke(main, [*arguments, "--config", where])

    def locked(self) -> Lock | None:
        return lock_io.load(self.lock)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    found = Place(tmp_path)
    found.offer("files", tool("read"), tool("write"))
    return found


@pytest.mark.promise("M40")
def test_what_is_offered_is_written_down_and_then_nothing_differs(place: Place) -> None:
    done = place.run("lock", "write")
    assert done.stdout == f"{place.lock}: 2 tools of 1 server\n"
    assert done.stderr == (
        "metamcp: notes was not seen yet as it is configured now; its tools are not looked at\n"
        "a gateway that runs knows it after 'metamcp reload'\n"
    )
    assert place.locked() == lock(files=approved(tool("read"), tool("write")))
    again = place.run("lock", "diff")
    assert (again.exit_code, again.stdout) == (0, "everything is as approved\n")


@pytest.mark.promise("M40")
def test_what_drifted_is_shown_and_approved(place: Place) -> None:
    place.run("lock", "write")
    hidden = tool("read", description="Reads.\u200b")
    place.offer("files", hidden, tool("write", inputSchema=BREAKING))
    shown = place.run("lock", "diff", "files.read")
    assert shown.exit_code == 1
    assert shown.stdout.splitlines() == [
        "files.read: compatible, words: it is defined otherwise than approved, in what it says",
        (
            "  compatible  /description: The text at 'description' is new. It has characters in it"
            " that nobody sees."
        ),
        "    --- approved",
        "    +++ offered",
        "    @@ -1,4 +1,5 @@",
        "     {",
        '    +  "description": "Reads.\\u200b",',
        '       "inputSchema": {',
        '         "properties": {',
        '           "path": {',
    ]
    one = place.run("lock", "approve", "files.read")
    assert one.stdout == "files.read: approved: compatible, words\n"
    assert one.stderr.endswith("a gateway that runs knows it after 'metamcp reload'\n")
    rest = place.run("lock", "diff")
    assert rest.stdout.startswith("files.write: breaking: it is defined otherwise than approved")
    assert place.run("lock", "approve").stdout == "files.write: approved: breaking\n"
    assert place.run("lock", "diff").exit_code == 0
    assert place.run("lock", "approve").stdout == "everything is as approved\n"


def test_a_diff_is_there_for_programs_too(place: Place) -> None:
    place.run("lock", "write")
    place.offer("files", tool("read", inputSchema=BREAKING), tool("more"))
    done = place.run("lock", "diff", "--json")
    assert done.exit_code == 1
    found = {each["tool"]: each for each in json.loads(done.stdout)["tools"]}
    assert {name: each["change"] for name, each in found.items()} == {
        "more": "added", "read": "changed", "write": "removed",
    }  # fmt: skip
    assert found["read"]["verdict"] == "breaking"
    assert not found["read"]["harmless"]
    assert found["read"]["findings"] == [
        {
            "pointer": "/inputSchema/required",
            "kind": "required",
            "weight": "breaking",
            "text": "'path' must be given now.",
        }
    ]
    assert (found["more"]["verdict"], found["more"]["approved"]) == (None, None)


def test_a_new_server_is_taken_in_and_one_that_is_gone_taken_out(place: Place) -> None:
    place.lock.write_text(text(lock(files=approved(tool("read"), tool("write")), old=approved())))
    place.offer("notes", tool("add"))
    noted = place.run("lock", "diff")
    assert noted.exit_code == 0
    assert "notes is not in" in noted.stderr
    alone = place.run("lock", "approve", "notes.add")
    assert alone.exit_code == 1
    assert "'metamcp lock approve notes' approves all of its tools" in alone.stderr
    assert place.run("lock", "approve").stdout.splitlines() == [
        "notes.add: approved: added",
        "old: not configured any more, taken out",
    ]
    found = place.locked()
    assert found is not None
    assert found.servers.keys() == {"files", "notes"}


def test_what_cannot_be_read_is_not_approved(place: Place) -> None:
    place.run("lock", "write")
    place.offer("files", b'{"name":"read","title":"a","title":"b"}', tool("write"))
    done = place.run("lock", "approve", "files")
    assert done.stdout.splitlines()[0] == (
        "files.read: not approved: its definition has no one reading"
    )
    assert place.run("lock", "diff").exit_code == 1


@pytest.mark.parametrize("verb", ["diff", "approve"])
def test_without_a_lock_there_is_nothing_to_compare(place: Place, verb: str) -> None:
    done = place.run("lock", verb)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "'metamcp lock write' makes one of what is offered now" in done.stderr


def test_what_is_told_to_approve_one_server_makes_the_lock_that_it_needs(place: Place) -> None:
    unseen = place.run("lock", "approve", "notes")
    assert (unseen.exit_code, unseen.stdout, place.lock.exists()) == (1, "", False)
    assert unseen.stderr == (
        "metamcp: notes was not seen yet as it is configured now; start the gateway once\n"
    )
    done = place.run("lock", "approve", "files")
    assert (done.exit_code, "takes it in" in done.stderr) == (0, False)
    held = place.locked()
    assert held is not None
    assert {name: sorted(each.tools) for name, each in held.servers.items()} == {
        "files": ["read", "write"]
    }


def test_what_an_approval_took_in_is_not_said_to_be_missing(place: Place) -> None:
    place.run("lock", "write")
    place.offer("notes", tool("add"))
    assert "notes is not in" in place.run("lock", "diff").stderr
    assert "notes is not in" not in place.run("lock", "approve").stderr


def test_names_that_are_not_there_are_told_with_the_nearest(place: Place) -> None:
    place.run("lock", "write")
    server, named = place.run("lock", "diff", "file"), place.run("lock", "diff", "files.reed")
    assert (server.exit_code, named.exit_code) == (8, 8)
    assert server.stderr == "metamcp: no server is named 'file'; did you mean 'files'?\n"
    assert named.stderr == "metamcp: 'files' has no tool 'reed'; did you mean 'read'?\n"


def test_a_lock_is_not_written_over_and_not_without_tools(place: Place, tmp_path: Path) -> None:
    place.run("lock", "write")
    again = place.run("lock", "write")
    assert again.exit_code == 1
    assert "is there already; 'metamcp lock approve' takes over what changed" in again.stderr
    (tmp_path / "empty").mkdir()
    empty = Place(tmp_path / "empty").run("lock", "write")
    assert (empty.exit_code, "no server was seen yet" in empty.stderr) == (1, True)


@pytest.mark.promise("M98")
def test_every_mistake_in_the_lock_is_told_at_once(place: Place) -> None:
    place.lock.write_text('{"version": 1, "servers": {"files": [], "notes": 5}}')
    done = place.run("lock", "diff")
    assert done.exit_code == 65
    assert done.stderr.splitlines() == [
        f"metamcp: {place.lock}:1: servers.files: must be a table, not a list",
        f"metamcp: {place.lock}:1: servers.notes: must be a table, not a number",
    ]


def test_a_lock_can_lie_elsewhere(place: Place, tmp_path: Path) -> None:
    where = str(tmp_path / "other.lock")
    assert place.run("lock", "write", "--lock", where).exit_code == 0
    assert place.run("lock", "diff", "--lock", where).exit_code == 0
    assert not place.lock.exists()


def test_tools_are_listed_with_how_they_stand(place: Place) -> None:
    *before, last = place.run("tools").stdout.splitlines()
    assert [line.split()[:2] + line.split()[3:] for line in before] == [
        ["SERVER", "TOOL", "STATE"],
        ["files", "read", "not", "locked"],
        ["files", "write", "not", "locked"],
    ]
    assert last == "not seen yet: notes"
    seen = place.saw("files", tool("read"), tool("write"))
    listed = json.loads(place.run("tools", "--json").stdout)["tools"]
    assert {each["state"] for each in listed} == {"as first seen"}, "nobody has approved it"
    seen.unlink()
    place.run("lock", "write")
    place.offer("files", tool("read", inputSchema=ADDITIVE), tool("write", title="x"), tool("new"))
    listed = json.loads(place.run("tools", "--json").stdout)["tools"]
    assert {each["tool"]: each["state"] for each in listed} == {
        "new": "added, in quarantine",
        "read": "additive",
        "write": "compatible, words, in quarantine",
    }
    assert all(each["fingerprint"].startswith("v1:") for each in listed)
    for word in ("files.new", "files/new", "files__new"):
        one = json.loads(place.run("tools", word, "--json").stdout)["tools"]
        assert [each["tool"] for each in one] == ["new"]
        assert "files.new: added" in place.run("lock", "diff", word).stdout


def test_without_a_lock_tools_are_compared_with_what_was_seen_first(place: Place) -> None:
    place.saw("files", tool("read"))
    done = place.run("tools", "--diff")
    assert done.exit_code == 0
    assert done.stdout.splitlines()[0] == "files.write: added: nobody has approved it yet"


def test_servers_without_pinning_are_not_looked_at(tmp_path: Path) -> None:
    config = CONFIG.replace('command = ["x"]', 'command = ["x"]\npinning = "off"')
    place = Place(tmp_path, config)
    place.offer("files", tool("read"))
    place.offer("notes", tool("add"))
    assert place.run("lock", "write").stdout.endswith("1 tool of 1 server\n")
    found = place.locked()
    assert found is not None
    assert found.servers.keys() == {"notes"}
