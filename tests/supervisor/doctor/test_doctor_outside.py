"""What the doctor looks at beyond the gateway: certificates of servers, units of systemd."""

import asyncio
import json
import os
import ssl
import subprocess
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from metamcp_supervisor.doctor import doctor_checks
from metamcp_supervisor.doctor.doctor_checks import (
    DAY_S,
    DoctorFinding,
    TlsHandshake,
    Unit,
    certificates,
    judged_certificate,
)
from tests.supervisor.cli.test_ctl import COMMAND
from tests.supervisor.configs import config, server
from tests.worker.http.test_fetch_tls import certificate, echo, tls
from tests.worker.scripted import serving

NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("handshake", "verdict", "words"),
    [
        (
            TlsHandshake(ends=NOW + 40.5 * DAY_S),
            "ok",
            "is trusted until 2027-02-24, 40 days from now",
        ),
        (TlsHandshake(ends=NOW + 13.9 * DAY_S), "warn", "13 days from now"),
        (TlsHandshake(distrust="its certificate is not accepted: expired"), "fail", "expired"),
        (TlsHandshake(trouble="cannot be reached: no route"), "warn", "no route"),
    ],
)
def test_a_certificate_is_judged_by_its_end_and_by_whether_it_counts(
    handshake: TlsHandshake, verdict: str, words: str
) -> None:
    found = judged_certificate("example.org:443 (a)", handshake, NOW)
    assert (found.check, found.verdict) == ("certificate", verdict)
    assert words in found.text
    assert bool(found.advice) is (verdict != "ok")


@pytest.mark.process
@pytest.mark.promise("M80")
async def test_servers_with_tls_are_asked_for_their_certificate_all_at_once(tmp_path: Path) -> None:
    file = certificate(tmp_path, days=5)
    async with serving(echo, tls=tls(file)) as url:
        whole = config(
            server("short", command=(), url=f"{url}?key=hunter2"),
            server("also", command=(), url=url),
            server("gone", command=(), url="https://127.0.0.1:9/"),
            server("plain", command=(), url="http://127.0.0.1:9/"),
            server("none", command=(), url=f"https://{64 * 'x'}.invalid/"),
            server("off", command=(), url="https://127.0.0.2/", enabled=False),
            server("here"),
        )
        trusting = ssl.create_default_context(cafile=str(file))

        def look(context: ssl.SSLContext | None) -> list[DoctorFinding]:

            return list(certificates(whole, time.time(), context))

        soon, gone = await asyncio.to_thread(look, trusting)
        assert soon.verdict == "warn"
        assert soon.text.startswith(f"{urlsplit(url).netloc} (short, also) is trusted")
        assert "4 days from now" in soon.text
        assert (gone.verdict, "cannot be reached" in gone.text) == ("warn", True)
        strange, _ = await asyncio.to_thread(look, None)
        assert strange.verdict == "fail"
        assert "its certificate is not accepted" in strange.text


@pytest.mark.parametrize(
    ("unit", "verdict", "words"),
    [
        (Unit("a.service", "x", "x"), "ok", "is that of this version"),
        (Unit("a.socket", None, "x"), "warn", "a.socket is missing"),
        (Unit("a.service", "old", "new", older=True), "warn", "and is older than it"),
        (Unit("a.service", "old", "new"), "warn", "is not what this version writes"),
        (
            Unit("a.service", "ExecStart=/a/b serve\n", "ExecStart=/c serve\n", program="/c"),
            "warn",
            "starts another installation: /a/b",
        ),
    ],
)
def test_a_unit_is_that_of_this_version_or_what_to_do_is_said(
    unit: Unit, verdict: str, words: str
) -> None:
    found = doctor_checks.check_unit(unit, "metamcp systemd install")
    assert (found.verdict, words in found.text) == (verdict, True)
    assert ("metamcp systemd install" in found.advice) is (verdict == "warn")


@pytest.mark.process
def test_a_unit_with_a_configuration_of_its_own_is_still_that_of_this_version(
    tmp_path: Path,
) -> None:
    environ = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path)}
    (tmp_path / "metamcp.toml").write_text("")
    program = COMMAND[:-1]

    def said(*arguments: str) -> str:
        done = subprocess.run(
            [*program, *arguments],
            capture_output=True, text=True, timeout=30, check=False, env=environ, cwd=tmp_path,
        )  # fmt: skip
        return done.stdout

    def unit_found() -> dict[str, str]:
        raw = said(
            "ctl", "--runtime-dir", str(tmp_path), "doctor", "--config", "metamcp.toml", "--json"
        )
        checks = json.loads(raw)["checks"]
        found: dict[str, str] = next(
            one for one in checks if str(tmp_path) in one["text"] and one["check"] == "unit"
        )
        return found

    shown = said("systemd", "show", "--user", "--config", "/srv/mine.toml")
    text = shown.partition("\n")[2].removesuffix("\n")
    unit = tmp_path / "systemd" / "user" / "metamcp.service"
    unit.parent.mkdir(parents=True)
    unit.write_text(text)
    assert unit_found()["verdict"] == "ok"
    unit.write_text(text.replace("Type=notify", "Type=simple"))
    assert "is not what this version writes" in unit_found()["text"]
    unit.write_text("[Service]\nExecStart=/opt/old/metamcp serve --config /srv/mine.toml\n")
    assert "starts another installation: /opt/old/metamcp" in unit_found()["text"]
