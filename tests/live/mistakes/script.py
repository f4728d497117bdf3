"""The script of `mistakes.md`: every command in it is run, and what it says is put below it.

A mistake is a heading with a number, and below it files, if it is made in a folder of its own, and
one `console` block. `curl` stands for a request over HTTP, with -X, -H and -d alone.
"""

import argparse
import http.client
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from tests.live.gateway import ROOT, SERVER, free_port
from tests.waiting import until

SCRIPT = Path(__file__).with_name("mistakes.md")
LANES = 3
COMMAND_S_MAX = 60
COLUMNS = 100
#: What stands in the script for what is another one each time.
PORT, OPS_PORT, HOME = "6270", "6271", "/home/ada"

_HEADING = re.compile(r"^### (\d+)\. (.+)$")
_FENCE = re.compile(r"^```(\S+)(?: (\S+))?$")
_EXIT = re.compile(r"^\(exit code \d+\)$")
_VARYING = (
    (re.compile(r"\b(process|pid) \d+"), r"\1 4711"),
    (re.compile(r"\b\d+(?:\.\d+)? ?(?:ms|s|m)(?= ago)"), "1s"),
    (re.compile(r"(?<=in use by )\S+"), "metamcp"),
    (re.compile(r"(?<=next start in )[\d.]+ (?:ms|s|m)"), "60 s"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[\d.Z+:]*|\b\d\d:\d\d:\d\d\b"), "12:00:00"),
    (re.compile(r'"(generation|retry_after_ms|inflight)":\d+'), r'"\1":1'),
    (re.compile(r"-[0-9a-f]{8,}\b"), "-1a2b3c4d"),
)


@dataclass
class Mistake:
    """`files`: of the folder it is made in, by name; None: where the gateway runs."""

    number: int
    title: str
    files: dict[str, str] | None = None
    commands: list[str] = field(default_factory=list[str])
    at: tuple[int, int] = (0, 0)
    """The lines of its block of commands and answers."""


@dataclass
class Script:
    lines: list[str]
    files: dict[str, str]
    """Of the folder in which the gateway runs."""
    mistakes: list[Mistake]

    @classmethod
    def read(cls) -> "Script":
        lines = SCRIPT.read_text().splitlines()
        script = cls(lines, {}, [])
        files = script.files
        at = 0
        while at < len(lines):
            if heading := _HEADING.match(lines[at]):
                script.mistakes.append(Mistake(int(heading[1]), heading[2]))
            elif fence := _FENCE.match(lines[at]):
                end = lines.index("```", at)
                block = lines[at + 1 : end]
                mistake = script.mistakes[-1] if script.mistakes else None
                if fence[1] == "console":
                    assert mistake is not None
                    mistake.commands = [one[2:] for one in block if one.startswith("$ ")]
                    mistake.at = (at + 1, end)
                else:
                    if mistake is not None:
                        mistake.files = files = mistake.files or {}
                    if fence[2]:
                        files[fence[2]] = "\n".join([*block, ""])
                at = end
            at += 1
        return script

    def told(self, mistake: Mistake) -> list[str]:
        """What the file says of it now."""
        return self.lines[mistake.at[0] : mistake.at[1]]

    def write(self, answers: dict[int, list[str]]) -> None:
        for mistake in reversed(self.mistakes):
            self.lines[mistake.at[0] : mistake.at[1]] = answers[mistake.number]
        SCRIPT.write_text("\n".join([*self.lines, ""]))


class World:
    """A home directory with a project in which a gateway runs, and room for other projects."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.home = Path(tempfile.mkdtemp(prefix="metamcp-")).resolve()
        self.project = self.home / "project"
        self.ports = {PORT: str(free_port()), OPS_PORT: str(free_port())}
        (self.home / "bin").mkdir()
        server = self.home / "bin" / "a-server"
        server.write_text(f'#!/bin/sh\nexec {shlex.join(SERVER)} "$@"\n')
        server.chmod(0o700)

    def environ(self, folder: Path) -> dict[str, str]:
        """For a command in this folder: that of a user whose home is above it."""
        dropped = re.compile("METAMCP_|XDG_|CLAUDE_|CODEX_|PYTEST_")
        kept = {key: one for key, one in os.environ.items() if not dropped.match(key)}
        return kept | {
            "HOME": str(folder.parent),
            "XDG_RUNTIME_DIR": str(folder.parent / "run"),
            "PATH": f"{self.home / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "COLUMNS": str(COLUMNS),
            "NO_COLOR": "1",
        }

    def folder(self, home: Path, files: dict[str, str]) -> Path:
        folder = home / "project"
        folder.mkdir(parents=True)
        (home / "run").mkdir(mode=0o700)
        for place, text in files.items():
            path = folder / place
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return folder

    @contextmanager
    def running(self) -> Generator[None, None, None]:
        """The gateway of the script."""
        self.folder(self.home, self.script.files)
        with (self.home / "log").open("ab") as log:
            gateway = subprocess.Popen(
                ["metamcp", "up", "--yes", *self._listening()],
                cwd=self.project, env=self.environ(self.project),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        try:
            until(lambda: self._settled(gateway), "each server had its chance")
            yield
        finally:
            gateway.terminate()
            gateway.wait(timeout=60)
            shutil.rmtree(self.home, ignore_errors=True)

    def answers(self) -> dict[int, list[str]]:
        """For each mistake the lines of its block."""
        with ThreadPoolExecutor(LANES) as lanes:
            found = lanes.map(self._answer, self.script.mistakes)
            return {
                one.number: lines for one, lines in zip(self.script.mistakes, found, strict=True)
            }

    def _answer(self, mistake: Mistake) -> list[str]:
        folder = self.project
        if mistake.files is not None:
            folder = self.folder(self.home / str(mistake.number), mistake.files)
        lines: list[str] = []
        for command in mistake.commands:
            lines += [f"$ {command}", *self._plain(folder, self._run(folder, command))]
        return lines

    def _run(self, folder: Path, command: str) -> str:
        program, *words = shlex.split(command)
        for usual, own in self.ports.items():
            words = [word.replace(f":{usual}", f":{own}") for word in words]
        if program == "curl":
            return asked(words)
        done = subprocess.run(
            [program, *words],
            cwd=folder, env=self.environ(folder), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=COMMAND_S_MAX, check=False,
        )  # fmt: skip
        return f"{done.stdout.rstrip()}\n(exit code {done.returncode})"

    def _plain(self, folder: Path, text: str) -> list[str]:
        """Without what is another one on each machine and each time."""
        for own, usual in (
            (str(folder.parent), HOME),
            (str(self.home), HOME),
            (sys.executable, "python"),
            (str(ROOT), "/opt/metamcp"),
            *((f":{own}", f":{usual}") for usual, own in self.ports.items()),
            *((f"port {own}", f"port {usual}") for usual, own in self.ports.items()),
        ):
            text = text.replace(own, usual)
        for pattern, instead in _VARYING:
            text = pattern.sub(instead, text)
        return [line.rstrip() for line in text.strip("\n").splitlines()]

    def _listening(self) -> list[str]:
        port, ops_port = self.ports.values()
        return ["--listen", f"127.0.0.1:{port}", "--ops-listen", f"127.0.0.1:{ops_port}"]

    def _settled(self, gateway: "subprocess.Popen[bytes]") -> bool:
        """Whether `notes` is ready, and the servers that cannot start were given up."""
        assert gateway.poll() is None, (self.home / "log").read_text()[-3000:]
        done = subprocess.run(
            ["metamcp", "ctl", "status", "--json"],
            cwd=self.project, env=self.environ(self.project),
            check=False, capture_output=True,
        )  # fmt: skip
        if not done.stdout:
            return False
        states = {one["name"]: one["state"] for one in json.loads(done.stdout)["servers"]}
        return states.pop("notes") in ("ready", "active") and set(states.values()) == {"error"}


def asked(words: list[str]) -> str:
    """Status and body of an HTTP request, written as `curl -i` takes it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("-X", dest="method")
    parser.add_argument("-H", dest="headers", action="append", default=[])
    parser.add_argument("-d", dest="body")
    parser.add_argument("url")
    given = parser.parse_args(words)
    url = urlsplit(str(given.url))
    target = f"{url.path}?{url.query}" if url.query else url.path
    line = http.client.HTTPConnection(url.hostname or "", url.port, timeout=COMMAND_S_MAX)
    headers = dict(header.split(": ", 1) for header in given.headers)
    method = given.method or ("POST" if given.body is not None else "GET")
    line.request(method, target, given.body, headers)
    answer = line.getresponse()
    body = answer.read().decode().strip("\n")
    line.close()
    return f"HTTP {answer.status}\n{body}"


def flawed(lines: list[str]) -> list[str]:
    """What no answer to a mistake may have: a traceback, an exit code or a status that says that
    all is well, nothing that says what is wrong."""
    ends = [line for line in lines if _EXIT.match(line) or line.startswith("HTTP ")]
    return [
        *(line for line in lines if "Traceback" in line),
        *(line for line in ends if line in ("(exit code 0)", "HTTP 200")),
        *(["no word"] if len(lines) < 3 else []),
    ]
