"""Public servers as their READMEs configure them: equal in `basic` and with `sandbox = "none"`?

Owns: the folders that they find, what is asked of them, what counts as equal. Never: what a server
needs; the table `public_servers.toml` has only what a README says.

    python -m tests.clients.survey [NAME ...]

A line for each server: `equal`; `refused`, and the line for its table that the gateway names;
`differs`, and no line; or `absent`, if it does not start without a sandbox either.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from metamcp_supervisor.control.client import Failed
from tests.live.client import Client
from tests.live.gateway import ROOT, Gateway

TABLE = Path(__file__).with_name("public_servers.toml")
START_S_MAX = 300
PROFILES = ("none", "basic")
LISTS = {"tools": "tools/list", "prompts": "prompts/list", "resources": "resources/list"}
ADVICE = re.compile(r"(?:add|: write) (\w+ = .+?)(?: to its table|, or name | or write )")
"""The line that the gateway names for a server that lacks a right."""
CHANGING = re.compile(r"\w{8}(?:-\w{4}){3}-\w{12}|[0-9a-f]{7,}|\d+|/tmp/\S+")
"""What differs between two runs of one server: times, hashes, temporary files."""
SECRET = "SECRET-OF-THE-HOME"
KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: lab
clusters: [{name: lab, cluster: {server: "https://127.0.0.1:9"}}]
contexts: [{name: lab, context: {cluster: lab, user: ann}}]
users: [{name: ann, user: {token: t}}]
"""


@dataclass(slots=True)
class Seen:
    """What a client saw of a server: names of each list, and the answer of each call. `advice`: the
    line that the gateway names for its table."""

    state: str = ""
    advice: str = ""
    lists: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    answers: list[str] = field(default_factory=list[str])


def furnish(folder: Path) -> dict[str, str]:
    """Write a home and a project; the values of `{home}` and `{work}`."""
    home, work = folder / "home", folder / "home" / "project"
    for path in (".kube", ".ssh", ".config/git", "project/vault/.obsidian", "project/repository"):
        (home / path).mkdir(parents=True)
    (home / ".kube" / "config").write_text(KUBECONFIG)
    (home / ".ssh" / "id_ed25519").write_text(SECRET)
    (home / ".config" / "git" / "config").write_text(
        "[user]\nname = Ann\nemail = ann@example.com\n"
    )
    (work / "file.txt").write_text("hello\n")
    (work / "vault" / ".obsidian" / "app.json").write_text("{}")
    (work / "file.js").write_text("var a = 1;\n")
    (work / "eslint.config.mjs").write_text("export default [{ rules: { 'no-var': 2 } }];\n")
    repository = work / "repository"
    subprocess.run(["git", "init", "--quiet"], cwd=repository, check=True)
    (repository / "untracked.txt").write_text("hello\n")
    return {"home": str(home), "work": str(work)}


def filled(value: Any, places: Mapping[str, str]) -> Any:
    """The value with the places in its strings."""
    text = json.dumps(value)
    for name, place in places.items():
        text = text.replace(f"{{{name}}}", place)
    return json.loads(text)


def look(entry: Mapping[str, Any], profile: str, folder: Path) -> Seen:
    """Start the server alone behind a gateway, and ask for its lists and its calls."""
    places = furnish(folder)
    server = {
        "command": filled(entry["command"], places),
        "env": entry.get("env", {}),
        "cwd": places["work"],
        "sandbox": profile,
        "start_timeout": f"{START_S_MAX}s",
        "restart": "never",
    }
    gateway = Gateway({"it": server}, wait=False)
    gateway.environ |= {"HOME": places["home"]} | caches(folder.parent)
    seen = Seen()
    with gateway:
        try:
            gateway.wait("it", timeout_s=START_S_MAX)
        except Failed as failure:
            logs = "\n".join(line.get("text", "") for line in gateway.logs("it")[-5:])
            seen.state = f"{failure}\n{logs}"
            seen.advice = advice(seen.state)
            return seen
        with closing(Client(gateway.port)) as client:
            for name, method in LISTS.items():
                result = client.request(method).get("result", {})
                seen.lists[name] = sorted(item["name"] for item in result.get(name, []))
            for tool, arguments in entry.get("calls", []):
                answer = client.request(
                    "tools/call", {"name": f"it__{tool}", "arguments": filled(arguments, places)}
                )
                seen.answers.append(normal(answer, folder))
        seen.advice = advice(gateway.ctl("describe", "it"))
    return seen


def advice(text: str) -> str:
    """The line to add that this text names."""
    found = ADVICE.search(text)
    return found[1] if found else ""


def caches(folder: Path) -> dict[str, str]:
    """Variables of launchers, so that all servers of a survey download into the same folders."""
    return {"npm_config_cache": str(folder / "npm"), "UV_CACHE_DIR": str(folder / "uv")}


def normal(answer: Mapping[str, Any], folder: Path) -> str:
    """The answer without what differs between two runs."""
    text = json.dumps({key: answer[key] for key in answer if key != "id"}, sort_keys=True)
    return CHANGING.sub("#", text.replace(str(folder), "FOLDER"))


def compare(name: str, entry: Mapping[str, Any], folder: Path) -> tuple[str, list[str]]:
    """The word for this server, and lines that say how it differs where it is confined."""
    seen: dict[str, Seen] = {}
    for profile in PROFILES:
        own = folder / f"{name}-{profile}"
        shutil.rmtree(own, ignore_errors=True)  # of a survey that was ended
        own.mkdir()
        seen[profile] = look(entry, profile, own)
        shutil.rmtree(own, ignore_errors=True)
        if profile == "none" and seen[profile].state:
            return "absent", [seen[profile].state]
    none, basic = (seen[profile] for profile in PROFILES)
    if basic.state:
        lines = [f"does not start: {basic.state}"]
    else:
        lines = [f"{what} differ" for what in LISTS if none.lists[what] != basic.lists[what]]
        lines += [
            f"{tool}:\n    none:  {left[:600]}\n    basic: {right[:600]}"
            for (tool, _), left, right in zip(
                entry.get("calls", []), none.answers, basic.answers, strict=True
            )
            if left != right
        ]
    if not lines:
        return "equal", []
    return ("refused", [basic.advice, *lines]) if basic.advice else ("differs", lines)


def main() -> int:
    """Print a line for each server; 1 if one differs and nothing says why."""
    options = argparse.ArgumentParser(prog="tests.clients.survey")
    options.add_argument("--folder", type=Path, help="where the launchers keep their downloads")
    options.add_argument("names", nargs="*")
    wanted = options.parse_args()
    table: dict[str, Any] = tomllib.loads(TABLE.read_text())
    names: Sequence[str] = wanted.names or list(table)
    os.environ["PATH"] = f"{ROOT}/.venv/packages/bin:{os.environ['PATH']}"
    folder = wanted.folder or Path(tempfile.mkdtemp(prefix="survey-", dir=Path.home()))
    folder.mkdir(exist_ok=True)
    counts = Counter[str]()
    for name in names:
        word, lines = compare(name, table[name], folder)
        counts[word] += 1
        sys.stdout.write(f"{word:8} {name}\n")
        sys.stdout.writelines(f"  {line}\n" for line in lines)
        sys.stdout.flush()
    sys.stdout.write(", ".join(f"{number} {word}" for word, number in counts.items()) + "\n")
    return 1 if counts["differs"] else 0


if __name__ == "__main__":
    sys.exit(main())
