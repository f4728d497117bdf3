"""Every command that README and docs show is run as it stands there, by the built wheel."""

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.docs.commands import Verb, tree
from deploy.docs.site_pages import FENCED
from metamcp_supervisor.cli import recordings
from tests.docs.pages import PAGES, blocks, commands, lines
from tests.docs.typist import Typist
from tests.live.client import Client
from tests.live.gateway import ROOT, Gateway, fake
from tests.waiting import until

pytestmark = pytest.mark.live

WALKS = "tests/docs/test_walks.py::test_the_"
COLLEAGUE = "tests/live/test_another_machine.py::test_four_lines_let_a_colleague_in"
CONTEXT = "tests/live/test_contexts.py::test_verbs_look_at_and_steer_the_gateway_of_a_context"
DEB = "tests/packages/test_deb.py::test_"
JOURNAL = (
    "tests/systemd/test_service.py::test_the_journal_finds_records_by_their_level_and_their_server"
)
SERVICE = "tests/systemd/test_documented.py::test_the_commands_of_the_page_do_what_they_say"
#: Commands that another test runs, with that test.
ELSEWHERE = {
    "pip install metamcp": f"{WALKS}program_is_the_one_of_the_wheel",
    "uvx metamcp init": f"{WALKS}four_lines_of_the_readme_lead_to_the_first_call",
    "uvx metamcp add time -- uvx mcp-server-time": (
        f"{WALKS}four_lines_of_the_readme_lead_to_the_first_call"
    ),
    "uvx metamcp up --yes": f"{WALKS}four_lines_of_the_readme_lead_to_the_first_call",
    "uvx metamcp up": f"{WALKS}three_lines_of_the_first_page_start_a_gateway",
    "metamcp store copy": (
        "tests/live/test_store.py::test_a_file_is_copied_once_and_named_until_then"
    ),
    'pg_dump --schema metamcp_store "$DATABASE_URL" > store.sql': (
        "tests/live/test_store.py::test_a_file_is_copied_once_and_named_until_then"
    ),
    "metamcp up": "tests/docs/test_walks.py::test_one_command_beside_an_mcp_json_is_enough",
    "metamcp down": f"{WALKS}tutorial_leads_from_an_empty_folder_to_its_end",
    "metamcp serve --config metamcp.toml": f"{WALKS}service_of_the_readme_does_what_its_lines_say",
    "claude mcp add --transport http metamcp http://127.0.0.1:6270/mcp": (
        "tests/docs/test_walks.py::test_one_command_beside_an_mcp_json_is_enough"
    ),
    "curl -H 'Content-Type: application/json' -d '{\"timezone\": \"UTC\"}'"
    " http://127.0.0.1:6270/api/time__get_current_time": (
        f"{WALKS}four_lines_of_the_readme_lead_to_the_first_call"
    ),
    "apt install ./metamcp_1.2.0_amd64.deb": (
        f"{DEB}an_installation_starts_nothing_and_lets_the_group_read_the_configuration"
    ),
    "systemctl enable --now metamcp.service": f"{DEB}servers_behind_npx_and_uvx_are_served",
    "metamcp ctl --runtime-dir /run/metamcp status": f"{DEB}servers_behind_npx_and_uvx_are_served",
    ".venv/packages/bin/towncrier build --version 1.2.0": (
        "tests/packages/test_release.py::test_fragments_become_a_section_of_the_changelog"
    ),
    "curl -s http://127.0.0.1:6271/metrics": "tests/docs/test_commands.py::test_metrics_are_read",
    "journalctl -u metamcp -p warning": JOURNAL,
    "journalctl -u metamcp METAMCP_SERVER=git": JOURNAL,
    "journalctl -u metamcp METAMCP_EVENT=order\\ refused -o json": JOURNAL,
    "metamcp keys create laptop --out laptop.key": COLLEAGUE,
    "metamcp serve --config metamcp.toml --listen 0.0.0.0:6270 --auth keys --tls local": COLLEAGUE,
    "metamcp install cursor --url https://gateway.lan:6270/mcp --key-file laptop.key --ca ca.pem": (
        COLLEAGUE
    ),
    "metamcp connect --url https://gateway.lan:6270/mcp --key-file laptop.key --ca ca.pem": (
        "tests/live/test_connect_protected.py"
        "::test_key_and_authority_come_from_the_environment_or_from_files"
    ),
    "metamcp install claude-code --take-over": (
        "tests/live/test_take_over.py::test_servers_of_all_files_move_behind_one_entry_and_back"
    ),
    "metamcp consent watch": (
        "tests/supervisor/cli/test_follow.py"
        "::test_consent_watch_shows_what_begins_to_wait_and_nothing_else"
    ),
    "metamcp consent approve 1-17": (
        "tests/live/test_consent.py::test_an_operator_answers_for_clients_that_cannot_ask"
    ),
    "metamcp consent deny 1-17": (
        "tests/live/test_consent.py::test_an_operator_answers_for_clients_that_cannot_ask"
    ),
    "metamcp consent revoke 3f9a51c2e0b7": (
        "tests/live/test_consent.py::test_an_operator_answers_for_clients_that_cannot_ask"
    ),
    "metamcp --context prod status": CONTEXT,
    "metamcp --context prod ctl restart git --wait": CONTEXT,
    "metamcp --context prod logs git -f": (
        "tests/live/test_contexts.py"
        "::test_a_follow_ends_with_its_user_and_counts_among_the_streams_of_its_key"
    ),
    "metamcp backup metamcp.backup": (
        "tests/live/test_keys.py"
        "::test_a_backup_of_a_running_gateway_brings_back_what_was_deleted_later"
    ),
    "metamcp restore metamcp.backup": (
        "tests/live/test_keys.py"
        "::test_a_backup_of_a_running_gateway_brings_back_what_was_deleted_later"
    ),
    "metamcp config check": (
        "tests/docs/test_configurations.py::test_two_mistakes_are_told_as_the_page_shows"
    ),
    "metamcp ctl upgrade": (
        "tests/live/test_upgrade.py"
        "::test_an_upgrade_under_load_costs_no_call_no_session_and_no_process"
    ),
    "/opt/metamcp/bin/pip install --upgrade metamcp": SERVICE,
    "metamcp login tracker --config metamcp.toml": (
        "tests/live/test_login.py::test_a_server_that_wants_oauth_works_once_a_person_has_logged_in"
    ),
    "metamcp replay 1m81dxj100000008": (
        "tests/live/test_recording.py"
        "::test_a_replay_shows_what_differs_and_asks_before_it_changes_something"
    ),
    "make run": "tests/live/test_demo.py"
    "::test_the_demo_shows_answers_of_six_servers_and_of_scripts_and_workflows",
    "make demo": "tests/live/test_demo.py"
    "::test_the_demo_shows_answers_of_six_servers_and_of_scripts_and_workflows",
    "make conformance": (
        "tests/conformance/test_conformance.py::test_a_cell_loses_no_check_that_it_passed_before"
    ),
    "make bench": "tests/live/test_bench.py::test_a_smoke_run_reaches_every_scenario",
    "make profile": ("tests/live/test_bench.py::test_a_profile_says_where_the_time_of_a_call_goes"),
    "make soak": ("tests/faults/test_soak.py::test_a_short_soak_breaks_nothing_that_should_hold"),
    "make soak-remote": (
        "tests/faults/test_soak.py"
        "::test_a_short_soak_with_remote_servers_that_misbehave_breaks_nothing_that_should_hold"
    ),
    "make soak-load": (
        "tests/benchmarks/test_soak_load.py"
        "::test_a_short_mixed_load_loses_nothing_and_leaves_nothing"
    ),
    "make soak-bad": (
        "tests/faults/test_soak_bad.py"
        "::test_bad_requests_and_bad_lines_of_a_server_leave_the_gateway_as_small_as_it_was"
    ),
    "make servers": (
        "tests/clients/test_survey.py"
        "::test_a_server_that_needs_nothing_is_equal_with_and_without_a_sandbox"
    ),
    "make fuzz": "tests/fuzz/test_fuzz.py::test_no_input_breaks_a_promise",
    "make wheel": "tests/packages/test_wheel.py::test_an_index_accepts_both",
    "make flaky N=20 FILE=tests/live/test_crash.py": (
        "tests/test_lanes.py::test_a_file_that_is_run_again_and_again_shows_the_run_that_failed"
    ),
    "make wheel-compiled": (
        "tests/packages/test_compiled_wheel.py"
        "::test_the_version_says_whether_the_modules_are_compiled"
    ),
    "make deb": f"{DEB}servers_behind_npx_and_uvx_are_served",
    "make pictures": (
        "tests/pictures/test_pictures.py::test_a_picture_shows_what_the_command_prints_today"
    ),
    "make imports": "tests/test_rooms.py"
    "::test_the_readme_shows_who_imports_whom_as_make_imports_draws_it",
    "make reference": "tests/docs/test_reference.py::test_the_reference_is_what_the_program_says",
    "make docs": "tests/docs/test_site.py::test_no_link_is_dead",
}
#: What runs the tests themselves.
BY_HAND = {
    "make setup", "make check", "make test", "make real", "make test-all", "make test-compiled",
}  # fmt: skip
#: Pages whose commands one test runs all together, as they stand there.
TOGETHER = {
    "docs/index.md": f"{WALKS}three_lines_of_the_first_page_start_a_gateway",
    "docs/tutorial.md": f"{WALKS}tutorial_leads_from_an_empty_folder_to_its_end",
    "docs/rest.md": "tests/live/test_rest.py::test_the_documented_commands_do_what_they_say",
    "docs/observability.md": "tests/live/test_ops_socket.py::test_the_documented_commands_work",
    "docs/systemd.md": SERVICE,
}
NOT_RUN_MAX = 10
"""Commands on the pages that no test runs, each with its reason; the number only falls."""
EXTRA = """
[audit]
[recording]
calls = "metadata"
[endpoints.default]
namespace = "default"
[endpoints.desk]
namespace = "default"
exposure = "toolset"
[code]
[endpoints.programs]
namespace = "default"
exposure = "code"
"""
HELLO = """
name: hello
inputs: {who: {type: string}}
steps: [output: "Hello ${{ inputs.who }}"]
"""
SCRIPT = "return args.n + 1\n"


def documented() -> list[str]:
    """The commands of all pages, once each, without those that are run together."""
    found = [
        line
        for page in PAGES
        if page.relative_to(ROOT).as_posix() not in TOGETHER
        for line in lines(page.read_text())
    ]
    return list(dict.fromkeys(found))


class Installed(Gateway):
    """Gateway that the installed program is. `program`: the command."""

    program: Path

    def command(self, *arguments: str | Path) -> list[str]:
        return [str(self.program), *super().command(*arguments)[3:]]


@pytest.fixture(scope="module")
def gateway(program: Path) -> Iterator[Gateway]:
    servers = {
        "git": fake("--garbage", "--only", "echo,git_status,git_log"),
        "time": fake("--only", "echo,get_current_time"),
    }
    found = Installed(servers, extra=EXTRA)
    found.program = program
    (found.folder / "hello.yaml").write_text(HELLO)
    found.config.write_text(f'workflows = ["hello.yaml"]\n{found.config.read_text()}')
    with found as running:
        (running.folder / "add-one.ts").write_text(SCRIPT)
        client = Client(running.port)
        client.call("time__echo", text="to be recorded")
        client.close()
        calls = running.folder / "state" / "calls"
        until(lambda: calls.is_dir() and any(calls.iterdir()), "the call is recorded")
        yield running


@pytest.fixture(scope="module")
def typist(gateway: Gateway, program: Path) -> Iterator[Typist]:
    environ = {
        **os.environ,
        "HOME": str(gateway.folder / "home"),
        "METAMCP_RUNTIME_DIR": str(gateway.folder / "run"),
        "METAMCP_STATE_DIR": str(gateway.folder / "state"),
    }
    with Typist(program, gateway.folder, environ) as found:
        yield found


@pytest.mark.promise("M80")
@pytest.mark.parametrize(
    "command", [one for one in documented() if one not in ELSEWHERE and one not in BY_HAND]
)
def test_a_documented_command_works(gateway: Gateway, typist: Typist, command: str) -> None:
    typed, *arguments = shlex.split(command)
    assert typed == "metamcp", f"{command}: add it to ELSEWHERE, with the test that runs it"
    if "status" in arguments:
        gateway.wait("git", "time")  # a restart may have come before it
    code, out, err = typist.type(arguments)
    assert b"Traceback" not in err
    assert b"Usage" not in err, err.decode()
    assert code == (130 if "-f" in arguments else 0), err.decode() + out.decode()


def test_metrics_are_read(gateway: Gateway) -> None:
    (command,) = [one for one in documented() if one.startswith("curl -s http")]
    done = subprocess.run(
        shlex.split(command.replace(":6271", f":{gateway.ops_port}")),
        capture_output=True, text=True, timeout=30, check=True,
    )  # fmt: skip
    assert "metamcp_up 1.0" in done.stdout


def test_the_column_heads_of_recorded_calls_are_those_of_the_page() -> None:
    page = (ROOT / "docs" / "logs.md").read_text()
    (shown,) = [line for line in page.splitlines() if line.startswith("TIME ")]
    assert tuple(shown.split()) == recordings.COLUMNS


def test_what_is_run_elsewhere_is_on_a_page_and_run_by_a_test_that_exists() -> None:
    shown = set(documented())
    assert sorted(set(ELSEWHERE) - shown) == []
    lost: list[str] = []
    for named in {*ELSEWHERE.values(), *TOGETHER.values()}:
        path, _, test = named.partition("::")
        if not re.search(rf"^(?:async )?def {test}\(", (ROOT / path).read_text(), re.MULTILINE):
            lost.append(named)
    assert lost == []


def test_a_command_in_a_sentence_names_a_verb_and_options_that_exist() -> None:
    metamcp = tree()
    wrong: list[str] = []
    for page in PAGES:
        prose = "".join(FENCED.split(page.read_text())[::2])
        for command in re.findall(r"`(?:uvx |sudo )?metamcp\s+([^`]+)`", prose):
            verb, rest = _found(metamcp, command.split())
            known = {
                name for option, _ in verb.options for name in re.findall(r"--?[\w-]+", option)
            }
            given = {word.partition("=")[0] for word in rest if re.match(r"--?\w", word)}
            unknown = given - known - {"--help", "--version"}
            if unknown or (verb.below and rest and re.match(r"[a-z]", rest[0])):
                wrong.append(f"{page.name}: metamcp {command}")
    assert wrong == []


def _found(verb: Verb, words: list[str]) -> tuple[Verb, list[str]]:
    """The verb that these words call, and the words behind its name."""
    for each in verb.below:
        if words and each.words[-1] == words[0]:
            return _found(each, words[1:])
    usual = [each for each in verb.below if each.words == ("metamcp", "tools", "search")]
    return (usual[0] if usual else verb), words


def test_what_no_test_runs_says_why_and_does_not_grow() -> None:
    marked = [block for block in blocks("sh", "console") if block.reason]
    unrun = {line for block in marked for line in commands(block.text)}
    assert all(len(block.reason.split()) > 3 for block in marked)
    assert len(unrun) <= NOT_RUN_MAX, unrun
