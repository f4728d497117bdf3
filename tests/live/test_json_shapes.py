"""`--json` of each verb has the members that docs/json.md says, from a gateway that runs."""

import json
import os
import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest

from tests import programs
from tests.docs.test_commands import EXTRA, HELLO, SCRIPT
from tests.live.client import Client
from tests.live.gateway import ROOT, Gateway, fake
from tests.supervisor.cli.test_errors_verbs import WITHOUT_JSON, every
from tests.waiting import until

pytestmark = pytest.mark.promise("M109")

ROW = re.compile(r"^\| (`[a-z].*?) \| (.*) \|$", re.MULTILINE)
ANSWERS = (
    "status", "wait git time", "start git", "restart git --wait", "stop time --wait",
    "start time --wait", "ctl drain git", "ctl undrain git", "ctl quarantine time",
    "ctl clear time", "reload", "confirm --yes", "logs git", "events", "top", "doctor",
    "ctl calls", "ctl describe git", "ctl views", "ctl tree", "ctl set git timeout=5s",
    "ctl signal git CONT", "ctl roll", "ctl dump-stacks git", "import", "add other -- other",
    "disable other", "enable other", "rename other others", "rename others other", "remove other",
    "install cursor", "uninstall cursor",
    "lock write", "lock approve",
    "tls init", "tls show", "tls trust-help", "systemd install --user --dry-run",
    "systemd uninstall --user --dry-run", "systemd show --user", "snippet cursor",
    "export --to cursor", "explain git__echo", "policy explain git__echo", "policy check",
    "catalog", "tools search", "tools hide git.git_log", "tools show git.git_log",
    "tools disable git.git_log", "tools enable git.git_log", "tools rename git.git_log history",
    "tools rename git.git_log git_log", "lock diff", "config check",
    "keys create laptop --out laptop.key",
    "keys show laptop", "keys rotate-pepper --grace 1d",
    "keys rotate laptop", "keys expire laptop", "keys revoke laptop", "keys list",
    "toolsets create dev git.echo", "toolsets list", "toolsets show dev",
    "toolsets add dev git.git_log", "toolsets remove dev git.git_log",
    "toolsets equip dev --endpoint desk", "toolsets unequip --endpoint desk",
    "toolsets delete dev --yes", "scripts save add-one.ts", "scripts list",
    "scripts show add-one", "scripts run add-one --args {'n':1} --endpoint programs",
    "scripts delete add-one", "results list", "results purge --all", "workflow check hello.yaml",
    "workflow graph hello.yaml", "workflow list", "workflow runs", "workflow suggest hello",
    "consent list", "audit verify", "sandbox learn git --for 1s",
    "console --no-open", "console sessions", "console revoke --all", "dashboards boards",
    "call git__echo text=x", "namespaces add few servers=git", "namespaces list",
    "namespaces show few", "namespaces set few description=Few", "namespaces remove few --yes",
    "endpoints add more namespace=default", "endpoints list", "endpoints show more",
    "endpoints set more sse=false", "endpoints remove more --yes",
    "workspaces add acme limits.in_flight=5", "workspaces list", "workspaces show acme",
    "workspaces set acme limits.in_flight=6", "workspaces remove acme --yes",
    "config set log.level=debug log.level=", "contexts",
    "backup backup --without-secrets", "down",
    "restore backup", "init",
)  # fmt: skip
"""Command lines, in an order in which each finds what it needs."""


def documented() -> dict[str, set[str]]:
    """The members of each verb, with their marks."""
    found: dict[str, set[str]] = {}
    for verbs, members in ROW.findall((ROOT / "docs" / "json.md").read_text()):
        first = members.partition("; with")[0]
        for verb in re.findall(r"`(.*?)`", verbs):
            found[verb] = set(re.findall(r"`(\w+\??)`", first)) - {"lines"} | (
                {"lines"} if verb == "sandbox learn" else set()
            )
    return found


def test_every_verb_with_json_has_a_row() -> None:
    alone = {verb for verb in every() if " " not in verb}
    verbs = {
        verb
        for verb in every()
        if verb not in WITHOUT_JSON
        and not (verb.startswith("ctl ") and verb.removeprefix("ctl ") in alone - {"calls"})
    }
    assert documented().keys() == verbs | {"console"}, "a group that is a verb, too"


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    servers = {
        "git": fake("--garbage", "--only", "echo,git_status,git_log"),
        "time": fake("--only", "echo,get_current_time"),
    }
    found = Gateway(servers, extra=EXTRA)
    (found.folder / "hello.yaml").write_text(HELLO)
    found.config.write_text(f'workflows = ["hello.yaml"]\n{found.config.read_text()}')
    with found as running:
        (running.folder / "add-one.ts").write_text(SCRIPT)
        (running.folder / "home").mkdir()
        client = Client(running.port)
        client.call("git__echo", text="to be logged")
        client.close()
        until(lambda: running.server("git")["calls"], "the call is counted")
        yield running


def answer(gateway: Gateway, line: str) -> dict[str, Any]:
    before, dashes, behind = line.replace("'n'", '\\"n\\"').partition(" -- ")
    words = [*shlex.split(before), "--json", *shlex.split(f"{dashes}{behind}")]
    where = gateway.folder / "empty" if line == "init" else gateway.folder
    where.mkdir(exist_ok=True)
    done = programs.run(
        [*programs.PROGRAM, *words],
        cwd=where,
        env={
            **os.environ,
            "HOME": str(gateway.folder / "home"),
            "METAMCP_RUNTIME_DIR": str(gateway.folder / "run"),
            "METAMCP_STATE_DIR": str(gateway.folder / "state"),
        },
    )
    assert done.stdout, f"{line}: {done.stderr}"
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[0])
    return found


@pytest.mark.live
def test_a_verb_prints_the_members_that_are_documented(gateway: Gateway) -> None:
    rows = documented()
    wrong: list[str] = []
    for line in ANSWERS:
        verb = max((verb for verb in rows if f"{line} ".startswith(f"{verb} ")), key=len)
        found = answer(gateway, line)
        if verb != "call" and found.pop("v", 0) != 1:
            wrong.append(f"{line} has no v")
        wanted = {member.rstrip("?"): member.endswith("?") for member in rows[verb]}
        needed = {member for member, optional in wanted.items() if not optional}
        if missing := needed - found.keys():
            wrong.append(f"{line} has no {sorted(missing)}")
        if verb != "call" and (more := found.keys() - wanted.keys()):  # a server may say more
            wrong.append(f"{line} has {sorted(more)}, which no row names")
    assert not wrong, "\n".join(wrong)
