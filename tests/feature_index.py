"""Table of the features in docs/architecture.md: where each lives, written by `make imports`.

Owns: which modules belong to a feature, by their names. Never: which imports are allowed
(`test_tidy`).
"""

import re

from tests.house import ROOT, SOURCES, module_name

PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- features -->\n", "<!-- end of features -->\n"
#: Feature -> its modules, as patterns of `package/module` without the side.
FEATURES = {
    "Audit": r"audit/|\w+/\w*audit\w*",
    "Calls under way and recorded": (
        r"\w+/(recordings|recorded_calls|call_log\w*|records|calls_page)"
    ),
    "Code mode and scripts": (
        r"code_mode/|sandbox/|\w+/(code_(?!process$)\w+|code_process|"
        r"\w*scripts?(_\w+)?|typescript_types)"
    ),
    "Confinement of servers": r"confinement/|\w+/(sandboxes|sandbox_rights|connect_broker)",
    "`connect`, the bridge": r"bridge/|cli/connect",
    "Console": r"console/|\w+/console_\w+",
    "Files of clients": (
        r"client_files/|config/(foreign_files|client_\w+)|"
        r"cli/(import_servers|install|take_over)"
    ),
    "Keys and quotas": r"keys/|access/(api_key|use_limits)|\w+/(keys|keys_page|key_table)",
    "Large results": r"results/|\w+/result_\w+",
    "Lock, drift, quarantine": r"approval/|\w+/(quarantine_io|lock|approvals|approvals_page)",
    "Login at remote servers": r"oauth/|child/oauth|servers/tokens|cli/login",
    "Metrics": (
        r"telemetry/(exposition|histograms|metric\w*|counters)|servers/(gauges|scrape)|"
        r"front_calls/stats"
    ),
    "Middleware": r"middleware/|\w+/\w*middleware\w*",
    "Policies and consent": (
        r"consent/|guard/|cel/|\w+/(policy_rules|consent\w*|guarded_calls|explain_call)"
    ),
    "Search": r"search/|embeddings/|embedder/|\w+/(embed\w+|search_\w+|vector_\w+)",
    "Tool sets, views, exposure": (
        r"views/|catalog/|"
        r"\w+/(toolsets?\w*|views_page|front_views|disclosure|servers_tools)"
    ),
    "Traces": r"telemetry/(traces|otlp)|front_records/trace",
    "Upgrade in place": r"gateway/upgrade\w*|http/connection_moves|front_calls/front_recovery",
    "Workflows and agents": r"workflows/|engine/|\w+/(engine_\w+|workflow_\w+)",
}
#: Column -> packages of both sides.
COLUMNS = {
    "Configuration": "config client_files",
    "Supervisor": (
        "approval audit calls code_mode consent control embeddings gateway keys middleware"
        " processes results roles servers store telemetry views wording workflows"
    ),
    "Commands and pages": "bridge cli console doctor",
    "Between processes": "ipc",
    "Front": (
        "access builtin_tools catalog front front_calls front_clients front_records front_steps"
        " guard http"
    ),
}
REST = "Process of its own, worker"


def write() -> None:
    PAGE.write_text(with_table(PAGE.read_text()))


def with_table(page: str) -> str:
    """Return the page with the table of today in place of the one that it has."""
    before, _, rest = page.partition(BEGIN)
    return before + BEGIN + table() + END + rest.partition(END)[2]


def table() -> str:
    heads = ("Feature", *COLUMNS, REST)
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for feature, pattern in FEATURES.items():
        cells = [""] * (len(COLUMNS) + 1)
        for (side, package), modules in sorted(modules_of(pattern).items()):
            cell = (
                f"`{package}/`" if package in whole_packages(pattern) else _list(package, modules)
            )
            column = column_of(side, package)
            cells[column] += f"{', ' if cells[column] else ''}{cell}"
        lines.append(f"| {feature} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def modules_of(pattern: str) -> dict[tuple[str, str], list[str]]:
    """Return the modules of a feature by side and package."""
    modules: dict[tuple[str, str], list[str]] = {}
    for path in SOURCES:
        side, _, rest = module_name(path).partition(".")
        package, _, module = rest.partition(".")
        if side in ("metamcp_supervisor", "metamcp_worker") and module:
            name = f"{package}/{module}"
            if re.fullmatch(pattern, name) or package in whole_packages(pattern):
                modules.setdefault((side, package), []).append(module)
    return modules


def whole_packages(pattern: str) -> set[str]:
    return {part.removesuffix("/") for part in pattern.split("|") if re.fullmatch(r"\w+/", part)}


def column_of(side: str, package: str) -> int:
    for number, (column, packages) in enumerate(COLUMNS.items()):
        if package in packages.split() and (side, column) != ("metamcp_worker", "Supervisor"):
            return number
    return len(COLUMNS)


def _list(package: str, modules: list[str]) -> str:
    return ", ".join(f"`{package}/{module}`" for module in sorted(modules))
