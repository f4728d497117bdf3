"""A real Prometheus that reads one gateway, and promtool (Debian: the package prometheus)."""

import json
import math
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pytest

from tests.live.gateway import free_port
from tests.observability import rules
from tests.waiting import until

needed = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="needs prometheus and promtool on the PATH (Debian: the package prometheus)",
)
JOB = "metamcp"
SCRAPE_MS = 1000
TOOL_S_MAX = 120
"""Of promtool, which evaluates days of samples: seconds, unless the machine is busy."""
CONFIG = """\
global: {{scrape_interval: {ms}ms, scrape_timeout: {ms}ms, evaluation_interval: 500ms}}
rule_files: [recording.yml, alerts.yml]
scrape_configs:
  - {{job_name: {job}, static_configs: [{{targets: ["127.0.0.1:{target}"]}}]}}
"""


@dataclass(frozen=True, slots=True)
class Series:
    """Values over time, without gaps in their meaning: NaN is left out."""

    labels: dict[str, str]
    points: tuple[tuple[float, float], ...]


class Prometheus:
    """It reads the port `target` each second, with the rules shortened to seconds."""

    def __init__(self, folder: Path, target: int) -> None:
        self.folder, self.port = folder, free_port()
        folder.mkdir(exist_ok=True)
        text = CONFIG.format(ms=SCRAPE_MS, job=JOB, target=target)
        (folder / "prometheus.yml").write_text(text)
        for name in ("recording.yml", "alerts.yml"):
            (folder / name).write_text(rules.shortened(name))

    def __enter__(self) -> Self:
        self.log = (self.folder / "log").open("wb")
        self.process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={self.folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={self.folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{self.port}",
                "--log.level=warn",
            ],
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
        )
        try:
            until(self._answers, "Prometheus answers")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(timeout=20)
        finally:
            self.process.kill()
            self.log.close()

    def _answers(self) -> bool:
        assert self.process.poll() is None, (self.folder / "log").read_text()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/-/ready", timeout=5) as got:
                return bool(got.status == 200)
        except OSError:
            return False

    def ask(self, path: str, **values: str | float) -> Any:
        """The data of one answer of its HTTP API."""
        body = urllib.parse.urlencode(values)
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{body}"
        with urllib.request.urlopen(url, timeout=20) as got:
            found = json.load(got)
        assert found["status"] == "success", found
        return found["data"]

    def over(self, expr: str, start: float, end: float, step_s: float = 0.5) -> list[Series]:
        """What the expression was over that time. An error of Prometheus is one of the test."""
        found = self.ask("query_range", query=expr, start=start, end=end, step=step_s)
        return [Series(each["metric"], tuple(_numbers(each["values"]))) for each in found["result"]]

    def value(self, expr: str) -> float | None:
        """The newest value of an expression of one series."""
        found = self.ask("query", query=expr)["result"]
        return float(found[0]["value"][1]) if found else None

    def fired(self) -> set[tuple[str, str]]:
        """Alerts that have fired so far, each with the server that it names."""
        found = self.ask("series", **{"match[]": 'ALERTS{alertstate="firing"}'})
        return {(each["alertname"], each.get("server", "")) for each in found}


def promtool(*arguments: str | Path, text: str | None = None) -> tuple[int, str]:
    """Exit code and all that it says."""
    done = subprocess.run(
        ["promtool", *map(str, arguments)],
        input=text,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TOOL_S_MAX,
        check=False,
    )
    return done.returncode, done.stdout


def _numbers(values: Iterable[tuple[float, str]]) -> Iterable[tuple[float, float]]:
    for at, text in values:
        value = float(text)
        if not math.isnan(value):
            yield at, value
