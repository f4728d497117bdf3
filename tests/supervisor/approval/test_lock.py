"""`metamcp.lock` is written the same way each time, and read with every mistake told at once."""

import json
import os
from pathlib import Path

import pytest

from metamcp_supervisor.approval import lock_io
from metamcp_supervisor.approval.lock import Lock, LockedServer, read, text
from metamcp_supervisor.config.config import ConfigInvalid
from tests.supervisor.locked import approved, lock, tool

FILES = approved(
    tool("read", description="Reads.", annotations={"readOnlyHint": True}), tool("write")
)
WRITTEN = text(lock(files=FILES, empty=LockedServer()))


def mistakes(content: str) -> list[str]:
    with pytest.raises(ConfigInvalid) as caught:
        read(content, "metamcp.lock")
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.promise("M40")
def test_a_lock_reads_as_it_was_written() -> None:
    found = read(WRITTEN, "metamcp.lock")
    assert found == lock(empty=LockedServer(), files=FILES)
    assert text(found) == WRITTEN


def test_the_file_has_one_line_for_each_member_and_the_order_of_names() -> None:
    fingerprint = FILES.tools["read"].fingerprint
    schema = '{"properties":{"path":{"type":"string"}},"type":"object"}'
    assert WRITTEN.split("\n")[:19] == [
        "{",
        '  "version": 1,',
        '  "servers": {',
        '    "empty": {',
        '      "tools": {}',
        "    },",
        '    "files": {',
        '      "serverInfo": {"name":"mcp-files","version":"1.2"},',
        '      "tools": {',
        '        "read": {',
        f'          "fingerprint": "{fingerprint}",',
        '          "definition": {',
        '            "description": "Reads.",',
        f'            "inputSchema": {schema},',
        '            "annotations": {"readOnlyHint":true}',
        "          }",
        "        },",
        '        "write": {',
        f'          "fingerprint": "{FILES.tools["write"].fingerprint}",',
    ]
    assert json.loads(WRITTEN)["version"] == 1


def test_the_order_in_which_a_server_offers_its_tools_does_not_count() -> None:
    one, other = approved(tool("a"), tool("b")), approved(tool("b"), tool("a"))
    assert text(lock(x=one)) == text(lock(x=other))


def test_what_nobody_sees_is_seen_in_the_file() -> None:
    hidden = "Adds.\u200b\U000e0041\u202e\u00a0\x1b[2J"
    content = text(lock(x=approved(tool("a\u200b", description=hidden))))
    assert content.replace("\n", "").isprintable()
    assert r"Adds.\u200b\udb40\udc41\u202e\u00a0\u001b[2J" in content
    assert read(content, "")
    assert read(content, "").servers["x"].tools["a\u200b"].definition["description"] == hidden


def test_comments_and_commas_too_many_are_taken() -> None:
    content = WRITTEN.replace('  "servers"', '  // approved by all of us\n  "servers"')
    assert read(content.replace("    }\n  }", "    },\n  },"), "x") == read(WRITTEN, "x")


@pytest.mark.promise("M98")
def test_every_mistake_of_a_hand_is_told_with_its_line() -> None:
    content = """{
  "version": 1,
  "serverz": {},
  "servers": {
    "Files": {
      "tools": {}
    },
    "git": {
      "serverInfo": {"name": 5, "color": "red"},
      "tools": {
        "a": {"fingerprint": 7, "definition": {}},
        "b": {"definition": []},
        "c": 1,
        "d": {
          "fingerprint": "md5:1",
          "definition": {"descripton": "x"}
        },
        "e": {
          "fingerprint": "v1:00",
          "definition": {"description": "x"}
        }
      }
    },
    "time": [],
    "fetch": {}
  }
}
"""
    place = "servers.git.tools"
    assert mistakes(content) == [
        "metamcp.lock:3: serverz: unknown key 'serverz'; did you mean 'servers'?",
        (
            "metamcp.lock:5: servers.Files: the name of the server may have only a-z, 0-9, '-' and"
            " '_', and begins with a letter or digit, such as 'files'"
        ),
        (
            "metamcp.lock:9: servers.git.serverInfo.color: unknown key 'color'; there are: name,"
            " version"
        ),
        "metamcp.lock:9: servers.git.serverInfo.name: must be a string, not a number",
        f"metamcp.lock:11: {place}.a.fingerprint: must be a string, not a number",
        f"metamcp.lock:12: {place}.b: has no 'fingerprint'",
        f"metamcp.lock:12: {place}.b.definition: must be a table, not a list",
        f"metamcp.lock:13: {place}.c: must be a table, not a number",
        f"metamcp.lock:15: {place}.d.fingerprint: 'md5:1' is not a fingerprint that is known here",
        (
            f"metamcp.lock:16: {place}.d.definition.descripton: unknown key 'descripton'; did you"
            " mean 'description'?"
        ),
        (
            f"metamcp.lock:19: {place}.e.fingerprint: is not that of the definition below it: one"
            " of them was changed by hand; undo that, or take the tool out of the file and run"
            " 'metamcp lock approve'"
        ),
        "metamcp.lock:24: servers.time: must be a table, not a list",
        "metamcp.lock:25: servers.fetch: has no 'tools'",
    ]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "metamcp.lock:1: Expecting value at column 1"),
        ("[]", "metamcp.lock: must be a JSON object: { … }"),
        ('{"version": 1, "version": 1}', "metamcp.lock:1: the key 'version' is written twice"),
        ('{"servers": {}}', "metamcp.lock: has no version; this program writes 1"),
        ('{"version": true, "servers": {}}',
         "metamcp.lock:1: version: True is not known here; this program reads 1"),
        ('{"version": 2, "servers": {"x": 1}}',
         "metamcp.lock:1: version: 2 is not known here; this program reads 1"),
        ('{"version": 1}', "metamcp.lock: has no 'servers'"),
        ("{\n<<<<<<< ours\n",
         "metamcp.lock:2: has a conflict that a merge left; settle it and read the file again"),
        (('{"version": 1, "servers": {"x": {"tools": {"t": {"fingerprint": "v1:0", "definition":'
         ' {"title": 1e999}}}}}}'),
         "metamcp.lock:1: servers.x.tools.t.definition: has a number in it that is none"),
        ("[" * 100_000, "metamcp.lock: nested too deeply"),
    ],
)  # fmt: skip
def test_a_file_that_is_none(content: str, told: str) -> None:
    assert mistakes(content) == [told]


# On disk


def test_a_lock_is_written_whole_and_left_alone_if_it_says_the_same(tmp_path: Path) -> None:
    path = tmp_path / "metamcp.lock"
    assert lock_io.load(path) is None
    assert lock_io.save(path, lock(files=FILES))
    assert lock_io.load(path) == lock(files=FILES)
    before = path.stat()
    assert not lock_io.save(path, lock(files=FILES))
    assert path.stat() == before
    assert os.listdir(tmp_path) == ["metamcp.lock"]


def test_mode_and_link_of_a_lock_stay(tmp_path: Path) -> None:
    true, link = tmp_path / "true.lock", tmp_path / "metamcp.lock"
    true.write_text(text(Lock()))
    true.chmod(0o600)
    link.symlink_to(true)
    assert lock_io.save(link, lock(files=FILES))
    assert link.is_symlink()
    assert true.stat().st_mode & 0o777 == 0o600
    assert lock_io.load(link) == lock(files=FILES)


def test_a_lock_that_cannot_be_read_is_a_mistake_in_it(tmp_path: Path) -> None:
    path = tmp_path / "metamcp.lock"
    path.mkdir()
    with pytest.raises(ConfigInvalid, match=r"metamcp\.lock: is a directory; name a file"):
        lock_io.load(path)


def test_a_lock_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        lock_io.save(tmp_path / "none" / "metamcp.lock", Lock())
    assert not os.listdir(tmp_path)
