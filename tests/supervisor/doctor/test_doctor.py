"""`metamcp ctl doctor`: each check by itself, and the command with and without a gateway."""

import asyncio
import json
import os
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from metamcp_supervisor.certificates import authority
from metamcp_supervisor.config.config import Address, UnixAddress
from metamcp_supervisor.config.installation import deno
from metamcp_supervisor.doctor import doctor, doctor_checks, doctor_security
from metamcp_supervisor.doctor.doctor_checks import DoctorFinding
from metamcp_supervisor.keys.api_keys import ApiKeys
from metamcp_supervisor.store.database import DatabaseFile
from metamcp_supervisor.verbs import NewKey
from metamcp_worker.ipc import audit_records
from tests.supervisor.cli.test_ctl import COMMAND, said
from tests.supervisor.configs import config, loaded, server
from tests.supervisor.small_gateway import server as running
from tests.supervisor.small_gateway import steered

OURS = {0, os.geteuid()}


def npx_package(home: Path, name: str, version: str, **manifest: object) -> Path:
    """A package in the cache of npx."""
    folder = home / ".npm/_npx/a1b2/node_modules" / name
    (folder / "dist").mkdir(parents=True)
    (folder / "dist/index.js").write_text("")
    written = {"name": name, "version": version, "bin": "dist/index.js", **manifest}
    (folder / "package.json").write_text(json.dumps(written))
    return folder / "dist/index.js"


def verdicts(findings: Sequence[DoctorFinding]) -> dict[str, str]:
    return {finding.check: finding.verdict for finding in findings}


@pytest.mark.parametrize(
    ("command", "package", "name", "program"),
    [
        (("npx", "-y", "@x/files@1.2", "/tmp"), "@x/files@1.2", "@x/files", ""),
        (("/usr/bin/npx", "--yes", "plain"), "plain", "plain", ""),
        (("npx", "-p", "@x/files", "run-it"), "@x/files", "@x/files", "run-it"),
        (("npx", "--package=@x/files", "run-it"), "@x/files", "@x/files", "run-it"),
        (("uvx", "mcp-server-git==1.0"), "mcp-server-git==1.0", "mcp-server-git", ""),
        (("uvx", "--from", "git-tools", "git-mcp"), "git-tools", "git-tools", "git-mcp"),
    ],
)
def test_a_wrapper_is_read_as_it_would_read_itself(
    command: tuple[str, ...], package: str, name: str, program: str
) -> None:
    found = doctor.parse_wrapper(command)
    assert found is not None
    assert (found.package, found.name, found.program) == (package, name, program)


@pytest.mark.parametrize(
    "command",
    [(), ("node", "x.js"), ("npx",), ("npx", "-y"), ("npx", "--call", "x"), ("uvx", "-n")],
)
def test_what_is_no_wrapper_or_not_understood_gets_no_advice(command: tuple[str, ...]) -> None:
    assert doctor.parse_wrapper(command) is None


def test_the_direct_command_of_a_package_that_is_in_the_cache(tmp_path: Path) -> None:
    script = npx_package(tmp_path, "@x/files", "1.2.3")
    git = server("git", command=("npx", "-y", "@x/files@1.2.3", "/tmp"))
    (finding,) = doctor.advice([git, server("direct")], {}, tmp_path)
    assert (finding.verdict, finding.check) == ("warn", "wrapper")
    assert finding.text.startswith("git runs through npx: about 40 MB and 2 processes more")
    assert finding.advice == f'command = ["node","{script}","/tmp"]'


def test_another_version_in_the_cache_is_not_the_package(tmp_path: Path) -> None:
    npx_package(tmp_path, "files", "1.2.3", bin={"a": "dist/index.js", "files": "dist/index.js"})
    for package, known in (("files@1.2.4", False), ("files@latest", True), ("other", False)):
        found = doctor.parse_wrapper(["npx", package])
        assert found is not None
        assert (doctor.direct(found, {}, tmp_path) is not None) == known, package


def test_a_package_that_is_not_there_is_to_be_installed(tmp_path: Path) -> None:
    servers = [
        server("a", command=("npx", "-y", "@x/files@1.2")),
        server("b", command=("uvx", "mcp-git")),
    ]
    npx, uvx = (finding.advice for finding in doctor.advice(servers, {}, tmp_path))
    assert npx == "'npm install -g @x/files@1.2', then command = [\"files\", …]"
    assert uvx == "'uv tool install mcp-git', then command = [\"mcp-git\", …]"


def test_an_installed_tool_is_found_where_it_is_installed(tmp_path: Path) -> None:
    program = tmp_path / "tools/mcp-git/bin/mcp-git"
    program.parent.mkdir(parents=True)
    program.write_text("")
    program.chmod(0o755)
    found = doctor.parse_wrapper(["uvx", "mcp-git", "-v"])
    assert found is not None
    there = {"UV_TOOL_DIR": str(tmp_path / "tools")}
    assert doctor.direct(found, there, Path("/nowhere")) == [str(program), "-v"]


def test_files_that_others_may_change_fail_with_the_remedy(tmp_path: Path) -> None:
    file, state = tmp_path / "metamcp.toml", tmp_path / "state"
    file.write_text("")
    file.chmod(0o646)
    state.mkdir(mode=0o700)
    here = config(state_dir=state, runtime_dir=tmp_path / "run")
    found = list(doctor_checks.files(here, OURS))
    assert verdicts(found) == {"state directory": "ok", "runtime directory": "ok"}
    with_file = replace(here, files=(file,))
    (first, *_) = doctor_checks.files(with_file, OURS)
    assert (first.verdict, first.advice) == ("fail", f"chmod o-w {file}")
    (first, *_) = doctor_checks.files(with_file, {os.geteuid() + 1})
    assert "belongs to user id" in first.text


def test_a_port_in_use_is_told_with_who_has_it() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = Address("127.0.0.1", taken.getsockname()[1])
        taken.listen()
        found = doctor_checks.port("listen", address)
    assert found.verdict == "fail"
    assert f"(process {os.getpid()})" in found.text
    assert doctor_checks.port("listen", Address("127.0.0.1", 0)).verdict == "ok"
    moved = doctor_checks.to_port_warning(found)
    assert (moved.verdict, moved.text) == ("warn", found.text)
    assert "takes the next free ports" in moved.advice


def test_a_unix_socket_for_metrics_is_looked_at_and_not_touched(tmp_path: Path) -> None:
    def look(path: Path) -> DoctorFinding:
        ops = UnixAddress(path)
        return doctor_checks.ops_listen(config(ops_listen=ops, runtime_dir=tmp_path / "run"))

    path = tmp_path / "ops.sock"
    assert (look(path).verdict, look(path).text) == ("ok", f"unix:{path} is free")
    assert "is made at the start" in look(tmp_path / "run" / "x").text
    missing = look(tmp_path / "no" / "x")
    assert (missing.verdict, missing.text) == (
        "fail", f"unix:{tmp_path}/no/x: no file can be made in {tmp_path}/no",
    )  # fmt: skip
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
        sock.listen()
        taken = look(path)
    assert taken.verdict == "fail"
    assert f"process {os.getpid()} of user id" in taken.text
    assert look(path).verdict == "ok"
    assert "of a gateway that is gone" in look(path).text
    assert path.exists()


def test_a_unix_socket_whose_file_somebody_removed_is_told(tmp_path: Path) -> None:
    path = tmp_path / "ops.sock"
    url = "http://127.0.0.1:6270/mcp"
    gone = doctor_checks.check_addresses(url, f"unix:{path}")
    assert (gone.verdict, gone.check) == ("fail", "listen")
    assert f"unix:{path} was removed" in gone.text
    path.touch()
    for ops in (f"unix:{path}", "http://127.0.0.1:6271"):
        found = doctor_checks.check_addresses(url, ops)
        assert (found.verdict, found.text) == ("ok", f"{url} and {ops} are the gateway's")


def test_every_protection_that_is_weaker_than_it_could_be_is_listed(tmp_path: Path) -> None:
    text = """
[servers.seen]
command = "x"
pinning = "record"
[servers.unseen]
command = "x"
pinning = "off"
[endpoints.open]
namespace = "default"
auth = "none"
[endpoints.url]
namespace = "default"
auth = "keys"
url_keys = true
[endpoints.tokens]
namespace = "default"
auth = "oauth"
oauth = { issuer = "https://id.example", audience = "https://g.example/mcp", allow_private = true }
"""
    found = doctor_security.security(loaded(tmp_path, text))
    assert found.verdict == "ok"
    assert found.text.removeprefix("enough while only this machine connects: ").split("; ") == [
        "any program here may call all servers, as no credential is asked for (open)",
        "a key may stand in the URL (url)",
        "an issuer may be in this network (tokens)",
        "changed tools are only recorded (seen)",
        "changes of tools are not seen (unseen)",
        "no TLS (127.0.0.1:6270)",
        "no audit ([audit])",
    ]
    wide = """
[gateway]
listen = "0.0.0.0:1"
auth = "keys"
tls = "local"
[audit]
"""
    found = doctor_security.security(loaded(tmp_path, wide))
    assert (found.verdict, found.text) == ("ok", "every protection is on")
    found = doctor_security.security(loaded(tmp_path, wide.replace("[audit]\n", "")))
    assert (found.verdict, found.text) == ("warn", "no audit ([audit])")


def test_what_runs_code_and_confines_it_is_told_where_there_is_code_mode(tmp_path: Path) -> None:
    text = '[servers.one]\ncommand = ["one"]\n'
    assert list(doctor_checks.code(loaded(tmp_path, text))) == []
    (found,) = doctor_checks.code(loaded(tmp_path, f"[code]\n{text}"))
    assert deno() in found.text if found.verdict == "ok" else "Landlock" in found.text
    off = loaded(tmp_path, f'[code]\nconfinement = "off"\n{text}')
    (found,) = doctor_checks.code(off)
    assert found.verdict == "warn"
    assert found.text.endswith("code is confined by Deno and by limits alone")


def test_files_with_secrets_that_others_can_read_and_broken_tls_are_found(tmp_path: Path) -> None:
    wide = """
[gateway]
listen = "0.0.0.0:1"
auth = "keys"
state_dir = "state"
"""
    state = tmp_path / "state"
    local = loaded(tmp_path, f'{wide}tls = "local"\n')
    assert [one.verdict for one in doctor_security.tls_files(local)] == ["ok"]
    authority.make(state, [])
    (found,) = doctor_security.tls_files(local)
    assert found.text == f"{state / authority.CERT} is for localhost alone"
    assert list(doctor_security.private_files(local)) == []
    for name in (authority.CA_KEY, authority.KEY):
        (state / name).chmod(0o644)
    found, _ = doctor_security.private_files(local)
    assert found.text == f"other users can read {state / authority.CA_KEY} (mode 0644)"
    authority.make(state, ["box.lan"])
    assert [one.verdict for one in doctor_security.tls_files(local)] == ["ok"]
    (state / authority.CA).write_text("")
    (found,) = doctor_security.tls_files(local)
    assert (found.verdict, "ca.pem is not a certificate in PEM" in found.text) == ("fail", True)
    own_key = tmp_path / "no.key"
    own = loaded(tmp_path, f'{wide}tls = {{ cert = "no.pem", key = "no.key" }}\n')
    (found,) = doctor_security.tls_files(own)
    assert (found.verdict, found.text) == ("fail", f"{tmp_path}/no.pem does not exist")
    (state / authority.CERT).rename(tmp_path / "no.pem")
    (tmp_path / "no.key").write_text("")
    (found,) = doctor_security.tls_files(own)
    assert found.text.endswith(f"no.pem is not a certificate in PEM, or {own_key} not a key in PEM")
    authority.make(state, [])
    (state / authority.KEY).rename(own_key)
    (found,) = doctor_security.tls_files(own)
    assert found.text == f"{own_key} is not the key of {tmp_path}/no.pem"


def test_room_that_the_disk_did_not_give_the_audit_is_told(tmp_path: Path) -> None:
    audited = config(server("one"), state_dir=tmp_path)
    audited = replace(audited, audit=replace(audited.audit, level="metadata"))
    check = doctor_security.room_of_audit
    assert not list(check(audited))  # the gateway makes it
    reserve = tmp_path / audit_records.FOLDER / audit_records.RESERVE
    reserve.parent.mkdir()
    (finding,) = check(audited)
    assert finding.verdict == "warn"
    assert "no room is kept back for its records" in finding.text
    with reserve.open("wb") as file:
        file.truncate(audit_records.RESERVE_BYTES)  # a size without blocks
        assert verdicts(list(check(audited))) == {"audit": "warn"}
        os.posix_fallocate(file.fileno(), 0, audit_records.RESERVE_BYTES)
    assert verdicts(list(check(audited))) == {"audit": "ok"}
    assert not list(check(replace(audited, audit=replace(audited.audit, level="off"))))


async def test_a_key_that_an_endpoint_names_and_that_is_missing_is_found(tmp_path: Path) -> None:
    text = """
[gateway]
state_dir = "state"
[workspaces.acme.endpoints.web]
namespace = "default"
auth = "keys"
keys = ["laptop", "nobody"]
"""
    keys = ApiKeys(DatabaseFile(tmp_path / "state"), lambda: {"web": "acme"}, time.time)

    await keys.carry_out_order(NewKey(name="laptop", workspace="acme"), "somebody")
    (found,) = await asyncio.to_thread(list, doctor_security.named_keys(loaded(tmp_path, text)))
    assert found.text == "the endpoint 'web' names keys that do not exist: nobody"
    assert found.advice == "'metamcp keys create nobody --workspace acme' makes one"


def test_names_that_do_not_resolve_fail_without_the_rest_of_the_url() -> None:
    servers = [
        server("a", command=(), url="https://secret@127.0.0.1/key"),
        server("b", command=(), url="https://no-such-name.invalid/secret"),
    ]
    impossible = server("c", command=(), url=f"https://{64 * 'x'}.invalid/secret")
    good, bad, never = doctor_checks.names(config(*servers, impossible))
    assert never.text.endswith("(c) does not resolve: no name is written like this")
    assert (good.verdict, good.text) == ("ok", "127.0.0.1 (a) resolves")
    assert bad.verdict == "fail"
    assert bad.text.startswith("no-such-name.invalid (b) does not resolve")
    assert "secret" not in good.text + bad.text


def test_a_clock_that_was_never_set_or_went_back_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_text("")
    written = file.stat().st_mtime
    assert [one.verdict for one in doctor_checks.clock([], 0.0)] == ["fail"]
    assert [one.verdict for one in doctor_checks.clock([file], written - 3600)] == ["warn"]
    assert [one.verdict for one in doctor_checks.clock([file, tmp_path / "gone"], written)] == [
        "ok"
    ]


def test_room_on_the_disk_is_measured_where_the_directory_will_be(tmp_path: Path) -> None:
    found = doctor_checks.disk(tmp_path / "not/yet/there")
    assert found.text.endswith(f"MiB free at {tmp_path}")


def test_the_kernel_and_the_limits_have_a_verdict_each() -> None:
    found = [
        *doctor_checks.open_files(os.getpid()),
        *doctor_checks.kernel(),
        *doctor_checks.cgroup(os.getpid()),
    ]
    assert {"open files", "pidfd", "subreaper", "cgroup"} <= set(verdicts(found))
    assert all(one.advice for one in found if one.verdict != "ok")


@pytest.mark.process
@pytest.mark.promise("M80")
@pytest.mark.parametrize("beside", ["", '[servers.b]\ncommand = ["true"]\n'])
def test_without_a_gateway_it_looks_at_what_one_would_find(tmp_path: Path, beside: str) -> None:
    (tmp_path / "metamcp.toml").write_text(f"[servers.a]\ncomand = 5\n{beside}")
    (tmp_path / "run").mkdir(mode=0o700)
    asked = [*COMMAND, "--runtime-dir", str(tmp_path / "run"), "doctor", "--config", "metamcp.toml"]
    done = subprocess.run(
        asked, cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert "none is running" in done.stdout
    assert "fail  configuration" in done.stdout
    assert "→ 'metamcp config check' tells everything" in done.stdout


@pytest.mark.process
async def test_with_a_gateway_it_looks_at_that_one(tmp_path: Path) -> None:
    (tmp_path / "metamcp.toml").write_text(
        f'[gateway]\nstate_dir = "{tmp_path}"\n[servers.a]\ncommand = ["npx", "x"]\n'
    )
    async with steered(running("a")) as (_, directory):
        asked = ("doctor", "--config", str(tmp_path / "metamcp.toml"), "--json")
        code, out, _ = await said(directory, *asked)
    found = json.loads(out)
    assert (code, found["v"], found["ok"]) == (0, 1, True)
    by_check = {one["check"]: one for one in found["checks"]}
    assert by_check["gateway"]["text"] == f"active, process {os.getpid()}"
    assert by_check["wrapper"]["verdict"] == "warn"
