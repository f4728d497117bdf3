"""The compiled wheel: built once by mypyc, installed alone, and run compiled and pure."""

import os
import sys
import sysconfig
import zipfile
from functools import partial
from pathlib import Path

import psutil
import pytest

from deploy import compiled
from tests.live.client import LEGACY, MODERN, Client
from tests.packages.checkout import PACKAGERS, ROOT, VERSION, built, checkout, run
from tests.packages.installed import installed, serving
from tests.waiting import until

pytestmark = [
    pytest.mark.process,
    # The first test waits for mypyc and a C compiler: two minutes of one core.
    pytest.mark.timeout(900),
]
ENABLED = {"HATCH_BUILD_HOOK_ENABLE_CUSTOM": "1"}
OBJECT = sysconfig.get_config_var("EXT_SUFFIX")
ERAS = [LEGACY, MODERN]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkout(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    (made,) = built(source, tmp_path_factory.mktemp("dist"), "wheel", environ=ENABLED)
    return made


@pytest.fixture(scope="module")
def program(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(wheel, tmp_path_factory.mktemp("venv"))


def names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as found:
        return found.namelist()


def compiled_processes(pid: int) -> list[int]:
    """Processes of the tree that have the compiled modules in their memory."""
    tree = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    return [
        one.pid for one in tree if "__mypyc" in Path(f"/proc/{one.pid}/maps").read_text()
    ]  # fmt: skip


def lists(client: Client) -> bool:
    return "echo__echo" in client.tools()


def test_the_wheel_has_an_object_beside_the_source_of_each_listed_module(wheel: Path) -> None:
    found = set(names(wheel))
    assert wheel.name.startswith(f"metamcp-{VERSION}-cp3")
    assert set(compiled.sources()) <= found
    objects = {path.removesuffix(OBJECT) for path in found if path.endswith(OBJECT)}
    listed = {path.removesuffix(".py") for path in compiled.sources()}
    assert objects == {*listed, "metamcp_worker__mypyc"}


def test_an_index_accepts_it_with_the_c_library_that_it_needs_in_its_name(
    wheel: Path, tmp_path: Path
) -> None:
    """The release does the same. An index refuses a wheel that is for Linux as such."""
    audited = ("env", f"PATH={PACKAGERS}:{os.environ['PATH']}", PACKAGERS / "auditwheel")
    run(*audited, "repair", "--wheel-dir", tmp_path, wheel, cwd=tmp_path)
    (named,) = tmp_path.glob("*.whl")
    assert "-manylinux" in named.name
    assert {path for path in names(named) if not path.endswith("/")} == set(names(wheel))
    run(PACKAGERS / "twine", "check", "--strict", named, cwd=tmp_path)


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13", "3.14"])
def test_what_the_compiler_is_told_of_raw_bytes_is_valid_for_each_python(
    python: str, tmp_path: Path
) -> None:
    (tmp_path / "one.py").write_text("import msgspec\n\nmsgspec.Raw(b'').copy()\n")
    told = ("env", f"MYPYPATH={compiled.stubs(tmp_path / 'stubs')}", sys.executable, "-m", "mypy")
    run(*told, "--strict", "--python-version", python, "one.py", cwd=tmp_path)


def test_the_next_pure_wheel_of_the_checkout_has_no_object(
    source: Path, wheel: Path, tmp_path: Path
) -> None:
    (pure,) = built(source, tmp_path, "wheel")
    assert pure.name == f"metamcp-{VERSION}-py3-none-any.whl"
    assert [path for path in names(pure) if path.endswith((".so", ".c"))] == []
    assert run("git", "status", "--porcelain", "--ignored", "worker", cwd=source) == ""


def test_the_version_says_whether_the_modules_are_compiled(program: Path, tmp_path: Path) -> None:
    assert run(program, "--version", cwd=tmp_path) == f"metamcp {VERSION} (compiled)\n"
    pure = ("env", "METAMCP_PURE=1", program)
    assert run(*pure, "--version", cwd=tmp_path) == f"metamcp {VERSION} (pure)\n"


@pytest.mark.parametrize("pure", [False, True], ids=["compiled", "pure"])
def test_all_processes_run_what_was_chosen_and_serve_both_eras(
    pure: bool, program: Path, tmp_path: Path
) -> None:
    with serving(program, tmp_path, {"METAMCP_PURE": str(int(pure))}) as (port, pid):
        for era in ERAS:
            client = Client(port, era)
            until(partial(lists, client), "the server is ready")
            assert client.text("echo__echo", text=era) == era
            client.close()
        # The nursery, a front and a worker at least.
        assert len(compiled_processes(pid)) >= 3 if not pure else compiled_processes(pid) == []


def test_a_traceback_names_file_function_and_line(program: Path, tmp_path: Path) -> None:
    code = "from metamcp_worker.ipc import codec; codec.envelope(b'{')"
    said = run(program.with_name("python"), "-c", code, cwd=tmp_path, ok=False)
    lines = (ROOT / "worker/metamcp_worker/ipc/codec.py").read_text().splitlines()
    number = next(
        number
        for number, line in enumerate(lines, 1)
        if "_decode_surrogates(_decode_envelope" in line
    )
    assert f'File "metamcp_worker/ipc/codec.py", line {number}, in envelope' in said
    assert "metamcp_worker.ipc.codec.Malformed: " in said
