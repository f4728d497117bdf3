"""`metamcp connect` to a gateway that asks for a key and speaks TLS: where both come from."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from metamcp_supervisor.certificates import authority
from tests import programs
from tests.live.bridge import Bridge
from tests.live.client import MODERN
from tests.live.gateway import Gateway, fake
from tests.waiting import until

pytestmark = pytest.mark.live

EXTRA = '[gateway]\ntls = "required"\nauth = "keys"\n[recording]\ncalls = "full"\n'


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with Gateway({"new": fake("--era", "both")}, extra=EXTRA) as found:
        yield found


@pytest.fixture(scope="module")
def key(gateway: Gateway) -> Path:
    """The file with a key."""
    file = gateway.folder / "one.key"
    command = [*gateway.command("keys"), "create", "one", "--out", str(file)]
    programs.run(command, check=True)
    return file


def url(gateway: Gateway) -> str:
    return f"https://127.0.0.1:{gateway.port}/mcp"


def ca(gateway: Gateway) -> str:
    return str(gateway.folder / "state" / authority.CA)


def refused(gateway: Gateway, *words: str, env: dict[str, str] | None = None) -> str:
    """What a bridge says that cannot begin."""
    bridge = Bridge("--url", url(gateway), *words, folder=gateway.folder, era=MODERN, env=env)
    assert bridge.close() == 2, bridge.told
    assert "Traceback" not in bridge.told
    return bridge.told


@pytest.mark.promise("M6")
def test_key_and_authority_come_from_the_environment_or_from_files(
    gateway: Gateway, key: Path
) -> None:
    text = key.read_text().strip()
    found = {"METAMCP_KEY": text, "METAMCP_CA": ca(gateway)}
    files = ("--key-file", str(key), "--ca", ca(gateway))
    variable = ("--key-env", "MINE", "--ca", ca(gateway))
    here = ("--runtime-dir", str(gateway.folder / "run"), "--key-file", str(key))
    meant = {"METAMCP_RUNTIME_DIR": str(gateway.folder / "run"), "METAMCP_KEY": text}
    for words, env in (
        (("--url", url(gateway)), found),
        (("--url", url(gateway), *files), {}),
        (("--url", url(gateway), *variable), {"MINE": text}),
        (here, {}),  # the authority of a gateway on this machine is known
        (("--url", url(gateway)), meant),
    ):
        with Bridge(*words, folder=gateway.folder, era=MODERN, env=env) as bridge:
            assert bridge.text("new__echo", text="safe") == "safe"
            assert text.encode() not in Path(f"/proc/{bridge.process.pid}/cmdline").read_bytes()
            assert text not in bridge.told
    assert text not in gateway.log.read_text()


def test_without_the_authority_or_the_key_the_client_hears_why(gateway: Gateway, key: Path) -> None:
    text = key.read_text().strip()
    http = url(gateway).replace("https", "http")
    for words, env, why in (
        (("--key-file", str(key)), {}, "Name the authority of its certificate with --ca FILE"),
        (("--ca", ca(gateway)), {}, "name its file with --key-file"),
        (("--ca", ca(gateway)), {"METAMCP_KEY": f"{text}x"}, "A valid credential is needed"),
        (("--url", http), {}, "If this port speaks TLS, write https:// in the URL"),
    ):
        bridge = Bridge("--url", url(gateway), *words, folder=gateway.folder, era=MODERN, env=env)
        said = str(bridge.request("tools/list"))
        bridge.close()
        said += bridge.told
        assert why in said
        assert "goes on as soon as" not in said
        assert text not in said


def test_a_key_that_others_can_read_is_refused_and_so_are_files_that_cannot_be_used(
    gateway: Gateway, key: Path, tmp_path: Path
) -> None:
    text = key.read_text()
    (tmp_path / "open.key").write_text(text)
    (tmp_path / "open.key").chmod(0o644)
    (tmp_path / "junk.pem").write_text("junk")
    said = refused(gateway, "--key-file", str(tmp_path / "open.key"))
    assert "may be read or written by others; run 'chmod 600' on it" in said
    assert text.strip() not in said
    for words in (("--ca", str(tmp_path / "junk.pem")), ("--ca", str(tmp_path))):
        assert f"{words[1]} has no certificates in PEM" in refused(gateway, *words)
    missing = refused(gateway, env={"METAMCP_CA": str(tmp_path / "none.pem")})
    assert "none.pem does not exist" in missing
    assert "the environment variable MINE is not set" in refused(gateway, "--key-env", "MINE")
    said = refused(gateway, "--key-env", text.strip())
    assert "the name of a variable, not the key itself" in said
    assert text.strip() not in said


def test_a_tool_that_the_key_does_not_open_is_not_called_for_want_of_a_key(
    gateway: Gateway, key: Path
) -> None:
    words = ("nope", "--key-file", str(key), "--ca", ca(gateway))
    done = gateway.run("call", *words, ok=())
    assert (done.returncode, "no tool is named 'nope' for this key" in done.stderr) == (8, True)


def test_a_key_is_not_sent_unencrypted_to_another_machine(gateway: Gateway, key: Path) -> None:
    far = ("--url", "http://192.0.2.2:6270/mcp")  # of no machine: RFC 5737
    why = "the key would travel unencrypted to 192.0.2.2; use an https URL"
    assert why in refused(gateway, *far, "--key-file", str(key))
    assert why in refused(gateway, *far, env={"METAMCP_KEY": key.read_text().strip()})


def test_a_recorded_call_is_replayed_with_a_key_over_tls(gateway: Gateway, key: Path) -> None:
    words = ("--url", url(gateway), "--key-file", str(key), "--ca", ca(gateway))
    with Bridge(*words, folder=gateway.folder, era=MODERN) as bridge:
        bridge.text("new__echo", text="again")

    def metamcp(verb: str, *words: str) -> subprocess.CompletedProcess[str]:
        where = ["--state-dir", str(gateway.folder / "state")]
        if verb == "replay":
            where += ["--runtime-dir", str(gateway.folder / "run")]
        command = [sys.executable, "-m", "metamcp_supervisor", verb, *where, *words]
        return programs.run(command)

    def recorded() -> list[str]:
        return [line for line in metamcp("calls", "--json").stdout.splitlines() if "again" in line]

    until(lambda: bool(recorded()), "the call is recorded")
    number = json.loads(recorded()[0])["id"]
    assert "the endpoint wants a valid key" in metamcp("replay", number, "--yes").stderr
    done = metamcp("replay", number, "--yes", "--key-file", str(key))
    assert done.returncode == 0, done.stderr
