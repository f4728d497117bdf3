"""Sources of the configuration: the main file, the files that it includes, the environment and the
command line.

Owns: the reading of all files, and which source wins. Never: the look-up of the main file
(`places`), the content of files (`parse`, `foreign_files`), joining them (`assemble`).
"""

import functools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import cast

import msgspec
from msgspec import Struct, structs
from msgspec.structs import replace

from metamcp_supervisor.config import (
    environment,
    files,
    foreign_files,
    formats,
    installation,
    middleware_tables,
    origins,
    parse,
    places,
    policy_rules,
    sections,
    workflow_files,
)
from metamcp_supervisor.config.assemble import assemble, listed_strictly
from metamcp_supervisor.config.config import (
    Config,
    ConfigInvalid,
    Form,
    GatewayConfig,
    Problem,
    WorkflowFiles,
)
from metamcp_supervisor.config.document import (
    BrokenSyntax,
    ConfigDocument,
    ConfigDraft,
    ConfigFindings,
    GatewayDraft,
    SourceLocation,
    Table,
    flaw,
    printable,
    shorten,
)
from metamcp_supervisor.config.options import keys, option
from metamcp_supervisor.config.printed_values import PrintedValues, program_output
from metamcp_supervisor.config.program import directory
from metamcp_supervisor.config.references import References
from metamcp_supervisor.config.tables import Section, feature_tables
from metamcp_worker.ipc.disclosure import Exposure
from metamcp_worker.ipc.engine_runs import LoadedFiles

LOG_FORMAT, LOG_VARIABLE = "log_format", "METAMCP_LOG_FORMAT"
EXPOSURE, NAMING, BUILTINS = "exposure", "naming", "builtins"
FILES_MAX = 64
"""Maximum number of files of a configuration, included files among them."""
WORKFLOWS_BYTES_MAX = 16 * 1024 * 1024
"""Maximum bytes of all workflows and rules together, as JSON."""
_NOTHING: Mapping[str, str] = MappingProxyType({})


def load(
    path: Path | None,
    *,
    environ: Mapping[str, str],
    cwd: Path,
    home: Path,
    flags: Mapping[str, str] = _NOTHING,
    watch: bool = False,
    any_port: bool = False,
    may_run: Callable[[Config], bool] | None = None,
) -> Config:
    """Load the configuration in `path`, or in the file that `places.find` finds.

    `flags`: settings from the command line: those of `[gateway]` by key, `log_format`, and
    `exposure`, `naming` and `builtins` for every endpoint. Flags win over the environment
    (`METAMCP_LISTEN` and so on), and the environment wins over the file. `watch`: value if no
    source sets it. `any_port`: use another port if a port that no source sets is taken. `may_run`:
    whether the programs of references may run, asked about a configuration without errors in which
    they have not; without it they do not run, and the values are placeholders (`Config.unrun`).

    A server with an error in its table gets a `mistake` and does not start; the other servers can
    run. Raises ConfigInvalid with every error, if one of them is not about a single server or if
    none of the servers could run.
    """
    main = places.find(path, environ=environ, cwd=cwd, home=home)
    if main is None:
        raise ConfigInvalid((Problem("", "", _none_found(cwd, home)),))
    printed = PrintedValues(environ)
    # Each file is read once: the text whose commands are permitted is the text whose commands run.
    texts = functools.cache(files.owned_text)
    workflows = functools.cache(_loaded_workflows)

    def read() -> Config:
        options = _CommandOptions(flags, watch=watch, any_port=any_port)
        return _read(
            _ConfigReader(environ, home, cwd, ConfigFindings(), printed, texts, workflows),
            main,
            cwd,
            options,
        )

    config = read()
    if not printed.noted or may_run is None:
        return replace(config, unrun=bool(printed.noted))
    if config.problems:
        printed.refusal = "its command does not run while the configuration has errors"
    elif may_run(config):
        printed.runs = True
    else:
        return replace(config, unrun=True)
    return read()


class _CommandOptions(Struct, frozen=True):
    """Settings from outside of files; see `load`."""

    flags: Mapping[str, str]
    watch: bool
    any_port: bool


def _read(reading: "_ConfigReader", main: Path, cwd: Path, options: _CommandOptions) -> Config:
    """Read all files once. Raises ConfigInvalid."""
    environ, home, findings = reading.environ, reading.home, reading.findings
    flags = options.flags
    reading.file(main, ())
    if not reading.drafts:
        raise ConfigInvalid(findings.list_errors())
    references = _references(environ, cwd, home)
    config_place = places.of(main, environ=environ, home=home)
    outside = _outside(environ, flags, cwd, findings)
    overrides = [parse.gateway_of(table, references, home) for table in outside]
    config = assemble(
        reading.drafts,
        overrides,
        default=GatewayConfig(
            watch=options.watch,
            state_dir=config_place.state_dir,
            runtime_dir=config_place.runtime_dir,
            movable=frozenset({"listen", "ops_listen"} if options.any_port else ()),
        ),
        files=tuple(reading.files),
        transports=lambda: installation.list_entry_points(installation.TRANSPORTS),
        client_port=places.client_port,
        findings=findings,
    )
    if config.traces.endpoint and (message := installation.describe_missing(installation.TRACES)):
        findings.error(reading.drafts[0].site.at("traces", "endpoint"), message)
    for table in feature_tables():
        site = reading.drafts[0].site.at(table.name)
        table.check(config.table(table.record), site, findings)
    for name, message in installation.unknown(config.log.levels).items():
        findings.error(reading.drafts[0].site.at("log", "levels", name), message)
    config = listed_strictly(_shown_as(config, flags, cwd, findings))
    runs_code = not config.code.enabled or installation.deno()
    message = "" if runs_code else installation.describe_missing(installation.CODE)
    sections.check_code(config, reading.drafts, message, findings)
    middleware_tables.check(
        config, reading.drafts[0].site, installation.list_entry_points, findings
    )
    policy_rules.warn(config.policies, config.servers, reading.drafts[0].site, findings)
    warnings = tuple(findings.warnings)
    config = replace(config, workflows=_workflows(reading), warnings=warnings)
    if form := _log_format(environ, flags, cwd, findings):
        config = replace(config, log=replace(config.log, format=form))
    runs = any(server.enabled and not server.mistake for server in config.servers.values())
    if findings.fatal or (findings.problems and not runs):
        looked_at = (*reading.files, *config.workflows.files)
        raise ConfigInvalid(findings.list_errors(), looked_at)
    programs = tuple(sorted(reading.printed.noted))
    origin = origins.collect_sites(reading.drafts, [table.site for table in outside]).of
    return replace(config, problems=findings.list_errors(), programs=programs, origin=origin)


def _workflows(reading: "_ConfigReader") -> WorkflowFiles:
    """Read the files of workflows and rules, if there are some."""
    workflows = workflow_files.by_workspace(reading.drafts)
    rules = workflow_files.all_rules(reading.drafts)
    if not workflows and rules is None:
        return WorkflowFiles()
    loaded = reading.workflows(workflow_files.arguments(workflows, rules))
    workflow_files.report(loaded, reading.drafts, reading.findings)
    return workflow_files.files(workflows, reading.drafts, loaded)


def _loaded_workflows(arguments: tuple[str, ...]) -> LoadedFiles | str:
    """Read files of workflows and rules in a process of its own (`engine.load`): YAML and CEL would
    stay in the memory of this one. Return a sentence if that is not possible."""
    command = (sys.executable, "-P", "-m", "metamcp_worker.engine.load", *arguments)
    environ = {
        name: os.environ[name] for name in environment.select_variables(os.environ, ["PYTHON*"])
    }
    subject = "the process that reads workflows"
    data, reason = program_output(command, Path("/"), environ, subject, WORKFLOWS_BYTES_MAX)
    if reason:
        return reason
    try:
        return msgspec.json.decode(data, type=LoadedFiles)
    except msgspec.DecodeError as error:
        return f"{subject} did not answer as expected: {error}"


def was_found_in(
    cwd: Path, path: Path, *, named_path: Path | None, environ: Mapping[str, str]
) -> bool:
    """Whether `path` was taken only because it is in the working directory. Then anyone who can
    write to that directory chose the commands, and the user has to confirm them."""
    if named_path is not None or environ.get(places.VARIABLE):
        return False
    return places.folder_of(path) == cwd


def trusted_state_dir(
    config: Config, *, environ: Mapping[str, str], home: Path, flags: Mapping[str, str]
) -> Path:
    """Return the state directory that user and system chose. A file that was only found must not
    choose another one: the file could bring its own record of confirmed commands."""
    if flags.get("state_dir") or environ.get("METAMCP_STATE_DIR"):
        return config.gateway.state_dir  # these win over every file
    return places.state_base(environ, home)


def _references(environ: Mapping[str, str], base: Path, home: Path) -> References:
    return References(
        environ=environ,
        secret=lambda name: files.secret(directory(name, base=base, home=home)),
        text_of=files.text_of,
        credential=functools.partial(files.credential, environ.get("CREDENTIALS_DIRECTORY", "")),
    )


def _none_found(cwd: Path, home: Path) -> str:
    first, second = cwd / "metamcp.toml", places.own_file(home)
    return (
        f"no configuration: there is neither {first} nor {second} nor {places.SYSTEM_FILE}, and no"
        " .mcp.json in the working directory; 'metamcp init' makes one here, 'metamcp up --from"
        " CLIENT' takes the servers of a client, and --config names another file"
    )


def _outside(
    environ: Mapping[str, str], flags: Mapping[str, str], cwd: Path, findings: ConfigFindings
) -> Sequence[Table]:
    """Return the settings of `[gateway]` from environment and command line, as a table for each."""
    assert set(flags) <= {*keys("gateway"), LOG_FORMAT, EXPOSURE, NAMING, BUILTINS}, sorted(flags)
    tables: list[Table] = []
    for key in keys("gateway"):
        variable = f"METAMCP_{key.upper()}"
        for label, text in (
            (f"${variable}", environ.get(variable)),
            (f"--{key.replace('_', '-')}", flags.get(key)),
        ):
            if text:
                values = {key: _value(key, text)}
                site = SourceLocation(ConfigDocument(label, cwd, values))
                tables.append(Table(values, site, findings, "gateway"))
    return tables


def _log_format(
    environ: Mapping[str, str], flags: Mapping[str, str], cwd: Path, findings: ConfigFindings
) -> Form | None:
    """Return `format` of `[log]` from environment or command line: the only setting outside of
    `[gateway]` that can be chosen for a single start."""
    chosen: Form | None = None
    for label, text in (
        (f"${LOG_VARIABLE}", environ.get(LOG_VARIABLE)),
        ("--log-format", flags.get(LOG_FORMAT)),
    ):
        if text:
            values: dict[str, object] = {"format": text}
            table = Table(
                values, SourceLocation(ConfigDocument(label, cwd, values)), findings, "log"
            )
            chosen = cast("Form | None", table.choice("format")) or chosen
    return chosen


def _shown_as(
    config: Config, flags: Mapping[str, str], cwd: Path, findings: ConfigFindings
) -> Config:
    """Set what every endpoint shows at first, and how, as on the command line."""

    def build_table(flag: str, section: Section, key: str, value: object) -> Table:
        values: dict[str, object] = {key: value} if flag in flags else {}
        site = SourceLocation(ConfigDocument(f"--{flag}", cwd, values))
        return Table(values, site, findings, section)

    def read_choice(flag: str, section: Section, key: str) -> str | None:
        return build_table(flag, section, key, flags.get(flag)).choice(key)

    exposure = cast("Exposure | None", read_choice(EXPOSURE, "endpoints.*", "exposure"))
    style = read_choice(NAMING, "endpoints.*.naming", "style")
    words = [word.strip() for word in flags.get(BUILTINS, "").split(",")]
    builtins = sections.builtins(build_table(BUILTINS, "endpoints.*", BUILTINS, words))
    if exposure is None and style is None and not builtins:
        return config
    return replace(
        config,
        endpoints={
            name: replace(
                each,
                exposure=exposure or each.exposure,
                naming=structs.replace(each.naming, style=style, separator="")
                if style
                else each.naming,
                builtins=builtins or each.builtins,
            )
            for name, each in config.endpoints.items()
        },
    )


def _value(key: str, text: str) -> object:
    """Convert a text to the value that a file would have."""
    kind = option("gateway", key).kind
    if kind == "integer" and text.isdecimal():
        return int(text)
    if kind == "strings":
        return [word.strip() for word in text.split(",")]
    return text == "true" if kind == "boolean" and text in ("true", "false") else text


class _ConfigReader(Struct):
    """Files that were read so far, the main file first, each of them once."""

    environ: Mapping[str, str]
    home: Path
    cwd: Path
    findings: ConfigFindings
    printed: PrintedValues
    texts: Callable[[Path], tuple[str, str]]
    workflows: Callable[[tuple[str, ...]], LoadedFiles | str]
    drafts: list[ConfigDraft] = []
    files: list[Path] = []
    _seen: set[str] = set()

    def file(self, path: Path, chain: tuple[str, ...], by: SourceLocation | None = None) -> None:
        """Read `path` and the files that it includes. `chain`: the files that lead to this one;
        `by`: the include that names it."""
        real = os.path.realpath(path)
        site = by or SourceLocation(ConfigDocument(printable(str(path)), path.parent, {}))
        if real in chain:
            circle = " → ".join((*chain[chain.index(real) :], real))
            self.findings.error(site, f"the files include each other: {circle}")
        elif real in self._seen:
            return
        elif fault := flaw(str(path)):
            self.findings.error(site, f"its path {fault}")
        elif len(self._seen) >= FILES_MAX:
            self.findings.error(site, f"is more than the {FILES_MAX} files that are read at most")
        else:
            self._seen.add(real)
            self._read(path, (*chain, real), by)

    def _read(self, path: Path, chain: tuple[str, ...], by: SourceLocation | None) -> None:
        label = printable(str(path))
        base = places.folder_of(path)
        document = ConfigDocument(label, base, {})
        draft = ConfigDraft(site=SourceLocation(document))
        try:
            text, not_owned = self.texts(path)
            kind, document = formats.document(path, text, base)
            references = replace(
                _references(self.environ, base, self.home),
                printed=self.printed.of_file(base, not_owned),
            )
            if kind != "toml" or foreign_files.is_foreign(path.name, document.values):
                project = str(by.document.base if by else self.cwd)
                draft = foreign_files.parse(
                    document, references, self.home, self.findings, project=project
                )
                if by:  # what the gateway is like is for the main file to say
                    draft = replace(draft, gateway=GatewayDraft(), rules=None, builtins=())
            else:
                draft = parse.parse(document, references, self.home, self.findings)
        except files.FileUnreadable as error:
            self.findings.error(
                by or SourceLocation(document),
                f"{shorten(path.name)} {error}" if by else str(error),
            )
        except BrokenSyntax as error:
            broken = Problem(label, "", error.message, error.line)
            self.findings.problem(broken)
        self.drafts.append(draft)
        self.files.append(path)
        if files.others_may_write(path):
            self.findings.add_warning(
                SourceLocation(document),
                "every user of this machine may change it; run 'chmod o-w' on it",
            )
        for name, site in draft.includes:
            if not name:
                self.findings.error(site, "is empty; name a file")
                continue
            self.file(directory(name, base=base, home=self.home), chain, site)
