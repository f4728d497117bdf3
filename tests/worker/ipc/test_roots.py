"""The roots of a client: what is read of its answer, and the folder that it works in."""

import pytest

from metamcp_worker.ipc import codec, roots


def answer(*uris: str) -> bytes:
    return codec.dump({"roots": [{"uri": uri, "name": "x"} for uri in uris]})


def test_the_uris_are_read_in_their_order() -> None:
    assert roots.uris(answer("file:///b", "file:///a")) == ("file:///b", "file:///a")
    assert roots.uris(roots.NONE) == ()


@pytest.mark.parametrize(
    "broken",
    [
        b"{}", b"[]", b'{"roots":{}}', b'{"roots":[1]}', b'{"roots":[{}]}',
        b'{"roots":[{"uri":1}]}',
        answer(*["file:///x"] * (roots.ROOTS_MAX + 1)),
        answer("file:///" + "x" * roots.ROOTS_BYTES_MAX),
    ],
)  # fmt: skip
def test_what_is_no_such_answer_is_told_so(broken: bytes) -> None:
    with pytest.raises(roots.RootsUnfit):
        roots.uris(broken)


@pytest.mark.parametrize(
    ("uris", "folder"),
    [
        (("file:///home/ada/a%20b",), "/home/ada/a b"),
        (("file://localhost/x", "file:///y"), "/x"),
        (("https://x/y",), ""),
        (("file://elsewhere/x",), ""),
        (("file:///x%00y",), ""),
        (("file:relative",), ""),
        (("file://[",), ""),
        ((), ""),
    ],
)
def test_the_folder_of_a_project_is_that_of_its_first_root(
    uris: tuple[str, ...], folder: str
) -> None:
    assert roots.folder(answer(*uris)) == folder


@pytest.mark.parametrize("path", ["/", "/home/ada/a b", "/ü/#?%41"])
def test_a_folder_is_found_again_in_what_is_said_of_it(path: str) -> None:
    assert roots.folder(roots.of_folder(path)) == path
    assert roots.folder(roots.effective(b"", path)) == path
    assert roots.effective(answer("file:///own"), path) == answer("file:///own")
    assert roots.effective(roots.NONE, "") == roots.NONE
