"""The `metamcp` command: finds the verb, imports only its file, and runs it."""

import sys

from metamcp_supervisor.processes import nursery_start

if sys.argv[1:2] in (["up"], ["serve"]) and not {"-h", "--help"} & {*sys.argv}:
    nursery_start.fork_early()  # now, because click loads modules that a nursery loads differently

import importlib
import os
import shlex

import click

from metamcp_supervisor import VERSION, runtime
from metamcp_worker.runtime import lazy_import

CTL = ""
"""Mark in place of a file: the verb is one of `ctl` that can also be called without `ctl`."""
_CORE: dict[str, tuple[str, str]] = {
    "up": ("metamcp_supervisor.cli.up:up", "Start the gateway in the foreground."),
    "serve": ("metamcp_supervisor.cli.up:serve", "Run the gateway as a service."),
    "down": (CTL, "End the gateway of this folder."),
    "status": (CTL, "Show what runs, and what is wrong."),
    "logs": (CTL, "Show what a server wrote to its stderr."),
    "events": (CTL, "Show the journal: what changed, and why."),
    "top": (CTL, "Show how much each server uses."),
    "start": (CTL, "Start servers."),
    "stop": (CTL, "Stop servers, after their calls in flight."),
    "restart": (CTL, "Stop servers and start them again."),
    "reload": (CTL, "Read the configuration again and restart only what changed."),
    "confirm": (CTL, "Show what a changed configuration starts, and start it."),
    "wait": (CTL, "Wait until servers are ready."),
    "doctor": (CTL, "Show what hinders a gateway, and what to do about it."),
    "ctl": (
        "metamcp_supervisor.cli.ctl:ctl",
        "Run all other verbs for a running gateway.",
    ),
    "init": ("metamcp_supervisor.cli.server_entries:init", "Make metamcp.toml in this folder."),
    "add": ("metamcp_supervisor.cli.server_entries:add", "Add a server to the configuration."),
    "remove": (
        "metamcp_supervisor.cli.server_entries:remove",
        "Remove a server from the configuration.",
    ),
    "disable": (
        "metamcp_supervisor.cli.server_entries:disable",
        "Switch a server off in the configuration.",
    ),
    "enable": (
        "metamcp_supervisor.cli.server_entries:enable",
        "Switch a server on in the configuration.",
    ),
    "rename": (
        "metamcp_supervisor.cli.server_entries:rename",
        "Give a server another name.",
    ),
    "namespaces": (
        "metamcp_supervisor.cli.settings:namespaces",
        "List, add, change and remove groups of servers.",
    ),
    "endpoints": (
        "metamcp_supervisor.cli.settings:endpoints",
        "List, add, change and remove what clients connect to.",
    ),
    "workspaces": (
        "metamcp_supervisor.cli.settings:workspaces_",
        "List, add, change and remove workspaces.",
    ),
    "calls": (
        "metamcp_supervisor.cli.recordings:calls",
        "Show recorded calls that are over ('ctl calls': those under way).",
    ),
    "explain": (
        "metamcp_supervisor.cli.explain_call:explain",
        "Show the way of a call, and what would happen to it now.",
    ),
    "policy": (
        "metamcp_supervisor.cli.explain_call:policy",
        "Check policies, and see which one decides.",
    ),
    "call": (
        "metamcp_supervisor.cli.call:call",
        "Call a tool, and print what it returns.",
    ),
    "replay": ("metamcp_supervisor.cli.recordings:replay", "Repeat a recorded call."),
    "sandbox": (
        "metamcp_supervisor.cli.sandbox_rights:sandbox",
        "Find out what a confined server needs.",
    ),
    "connect": (
        "metamcp_supervisor.cli.connect:connect",
        "Bridge a client on stdin and stdout to the gateway.",
    ),
    "install": (
        "metamcp_supervisor.cli.install:install",
        "Put MetaMCP into the configuration of a client.",
    ),
    "uninstall": (
        "metamcp_supervisor.cli.install:uninstall",
        "Remove MetaMCP from the configuration of a client.",
    ),
    "snippet": (
        "metamcp_supervisor.cli.install:snippet",
        "Print what a client needs in its configuration.",
    ),
    "import": (
        "metamcp_supervisor.cli.import_servers:import_",
        "Copy the servers of other clients into metamcp.toml.",
    ),
    "export": (
        "metamcp_supervisor.cli.import_servers:export",
        "Write servers as the file of another program.",
    ),
    "toolsets": (
        "metamcp_supervisor.cli.toolsets:toolsets",
        "Look at and change tool sets: named choices of tools.",
    ),
    "tls": ("metamcp_supervisor.cli.tls:tls", "Make and show certificates of the gateway."),
    "keys": ("metamcp_supervisor.cli.keys:keys", "Make, list and end API keys."),
    "backup": (
        "metamcp_supervisor.cli.backup:backup",
        "Copy what the gateway stores to a file, secrets encrypted.",
    ),
    "restore": (
        "metamcp_supervisor.cli.backup:restore",
        "Put such a copy in the place of what is stored.",
    ),
    "store": (
        "metamcp_supervisor.cli.backup:store",
        "Look at the database, and copy it to PostgreSQL.",
    ),
    "login": (
        "metamcp_supervisor.cli.login:login",
        "Get the gateway authorized to use a remote server.",
    ),
    "logout": ("metamcp_supervisor.cli.login:logout", "Remove the tokens for a remote server."),
    "catalog": (
        "metamcp_supervisor.cli.tools:catalog",
        "List all commands of all servers, as they were last offered.",
    ),
    "tools": (
        "metamcp_supervisor.cli.tools:tools",
        "List the tools that the servers offered last, and what drifted.",
    ),
    "lock": (
        "metamcp_supervisor.cli.lock:lock",
        "Approve definitions of tools, and show what is approved.",
    ),
    "config": (
        "metamcp_supervisor.cli.config:config",
        "Check and show the configuration.",
    ),
    "systemd": (
        "metamcp_supervisor.cli.systemd:systemd",
        "Run the gateway as a service of systemd.",
    ),
    "dashboards": (
        "metamcp_supervisor.cli.config:dashboards",
        "Write dashboards for Grafana and rules for Prometheus.",
    ),
    "contexts": (
        "metamcp_supervisor.cli.listings:contexts",
        "List the gateways on other machines that --context names.",
    ),
    "completion": (CTL, "Print the script for completion in your shell."),
}


def verbs() -> dict[str, tuple[str, str]]:
    """Return file and sentence of every verb by its name, with those of the features."""
    from metamcp_supervisor.features import all_features

    commands = dict(_CORE)
    for feature in all_features():
        commands |= feature.commands
    return commands


HEADINGS: dict[str, tuple[str, ...]] = {
    "Begin": ("up", "init", "add", "remove", "disable", "enable", "rename", "namespaces",
              "endpoints", "workspaces", "import", "export", "install", "uninstall", "snippet",
              "connect"),
    "Look": ("status", "console", "top", "logs", "events", "calls", "tools", "catalog", "explain",
             "doctor", "wait"),
    "Steer": ("start", "stop", "restart", "reload", "confirm", "down", "ctl", "replay"),
    "Use": ("call", "toolsets", "scripts", "workflow", "results"),
    "Protect": ("keys", "tls", "login", "logout", "consent", "policy", "lock", "sandbox", "audit"),
    "Operate": ("serve", "systemd", "config", "contexts", "backup", "restore", "store",
                "dashboards", "completion"),
}  # fmt: skip
"""Groups of `metamcp --help --all`."""
COMMON = {
    "up", "init", "add", "remove", "disable", "import", "install", "uninstall", "status", "console",
    "logs", "events", "tools", "doctor", "restart", "reload", "down", "call", "keys", "serve",
}  # fmt: skip
"""Verbs that `metamcp --help` shows."""
ALL = "--all"

_LIST = "servers are listed by 'metamcp status', their tools by 'metamcp tools'"
_SEARCH = "tools are searched by 'metamcp tools WORDS'"
_END = "the gateway ends with 'metamcp down'"
_VIEW = "a client brings it into view, or an operator with 'metamcp toolsets equip NAME'"
_CHECK = "the configuration is checked by 'metamcp config check'"
#: Words that people know from other programs, and the sentence that names the verb here.
WORDS = {
    "run": "the gateway starts with 'metamcp up', a script with 'metamcp scripts run NAME'",
    "gateway": "the gateway starts with 'metamcp up'",
    "ui": "the web console is opened by 'metamcp console'",
    "web": "the web console is opened by 'metamcp console'",
    "dashboard": "the web console is opened by 'metamcp console'",
    "daemon": "the gateway is a service with 'metamcp serve'",
    "server": "did you mean 'serve', or 'status' for the servers behind the gateway?",
    "list": _LIST,
    "ls": _LIST,
    "ps": _LIST,
    "servers": _LIST,
    "discover": _LIST,
    "search": _SEARCH,
    "find": _SEARCH,
    "invoke": "a tool is called by 'metamcp call TOOL'",
    "kill": _END,
    "quit": _END,
    "exit": _END,
    "shutdown": _END,
    "new": "metamcp.toml is made by 'metamcp init'",
    "create": "metamcp.toml is made by 'metamcp init', a tool set by 'metamcp toolsets create'",
    "delete": "a server is taken out with 'metamcp remove NAME'",
    "update": "the program is updated as it was installed; then 'metamcp ctl upgrade' lets the new"
    " version take over",
    "rm": "a server is taken out with 'metamcp remove NAME'",
    "check": _CHECK,
    "validate": _CHECK,
    "test": _CHECK,
    "setup": "a client gets the gateway by 'metamcp install CLIENT'",
    "proxy": "the bridge on stdin and stdout is 'metamcp connect'",
    "stdio": "the bridge on stdin and stdout is 'metamcp connect'",
    "health": "did you mean 'doctor'?",
    "save": "a tool set is made by 'metamcp toolsets create NAME SERVER.TOOL…', a script by"
    " 'metamcp scripts save FILE'",
    "load": _VIEW,
    "equip": _VIEW,
    "activate": _VIEW,
    "unequip": "it is put away by 'metamcp toolsets unequip'",
    "deactivate": "it is put away by a client, or by 'metamcp toolsets unequip'",
    "namespaces": "namespaces and endpoints are shown by 'metamcp config show'",
    "endpoints": "namespaces and endpoints are shown by 'metamcp config show'",
    "auth": "did you mean 'login', for a remote server that is configured with oauth?",
    "version": "the version is told by 'metamcp --version'",
    "help": "verbs are listed by 'metamcp --help'",
}

OF_START = {
    "--config", "--listen", "--port", "--ops-listen", "--exposure", "--naming", "--builtins",
    "--auth", "--tls", "--runtime-dir", "--state-dir", "--fronts", "--workers", "--socket",
    "--log-format",
}  # fmt: skip
"""Options that programs without verbs have, and `metamcp up` and `serve` here."""
SHOWN_WORDS_MAX = 10
"""Maximum number of words of a command line that a sentence repeats."""
STAYING = {"up", "serve"}
"""Verbs whose process stays. Unless it forked a nursery, which needs TLS in asyncio, the process
loads asyncio without: workers speak TLS themselves, and the exporter of traces uses TLS without
asyncio."""


class LazyGroup(click.Group):
    """Click group that has name and help of every verb; it imports a verb's file at the call."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(verbs())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command_file = _CORE.get(cmd_name) or verbs().get(cmd_name)
        if command_file is None:
            return None
        if cmd_name in STAYING:
            lazy_import.import_when_used("asyncio.sslproto", "msgspec.inspect")
            lazy_import.import_without("ssl", "asyncio")
            lazy_import.import_without("typing_extensions", "msgspec")
        reference = command_file[0]
        if reference == CTL:
            from metamcp_supervisor.cli import ctl

            return ctl.alone(cmd_name)
        module, _, name = reference.partition(":")
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0].partition("=")[0] in OF_START:
            line = shlex.join(args[:SHOWN_WORDS_MAX])
            message = f"{args[0]} belongs to a verb: type 'metamcp up {line}', or 'serve' for 'up'"
            raise click.UsageError(message, ctx)
        ctx.meta[ALL] = ALL in args
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        word = args[0]
        helps = {*self.get_help_option_names(ctx)} & {*args} or ctx.resilient_parsing
        if word not in verbs() and not word.startswith("-") and not ctx.resilient_parsing:
            message = f"no command is named {word!r}; {_explain_unknown(word)}"
            if "--json" in args:
                from metamcp_supervisor.cli import errors

                errors.fail(click.UsageError.exit_code, message, as_json=True)
            raise click.UsageError(message, ctx)
        if os.environ.get(runtime.CONTEXT) and not helps:
            _enter_context(args, is_typed=runtime.CONTEXT in ctx.meta)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        listed = verbs()
        width = max(map(len, listed))
        grouped = {name for names in HEADINGS.values() for name in names}
        others = tuple(name for name in listed if name not in grouped)
        for heading, names in (*HEADINGS.items(), *([("Others", others)] if others else [])):
            common = names if ctx.meta[ALL] else [name for name in names if name in COMMON]
            visible = [name for name in common if name in listed]
            if visible:
                with formatter.section(heading):
                    formatter.write_dl([(name.ljust(width), listed[name][1]) for name in visible])
        if not ctx.meta[ALL]:
            formatter.write_paragraph()
            formatter.write_text(f"'metamcp --help {ALL}' shows all {len(listed)} verbs.")


def _explain_unknown(word: str) -> str:
    """Return the second half of a sentence about an unknown verb."""
    from metamcp_supervisor.cli.ctl import ctl
    from metamcp_supervisor.config.naming import hint
    from metamcp_worker.ipc import builtin_definitions

    if word in builtin_definitions.names():
        return "it is a tool: clients call it at an endpoint, operators have 'metamcp toolsets'"
    if word in ctl.list_commands(click.Context(ctl)):
        return f"it is one of ctl: 'metamcp ctl {word}'"
    return WORDS.get(word) or hint(word, verbs())


def _choose_context(context: click.Context, _option: click.Parameter, name: str | None) -> None:
    if name is not None:
        os.environ[runtime.CONTEXT] = context.meta[runtime.CONTEXT] = name


def _enter_context(words: list[str], *, is_typed: bool) -> None:
    """Let a verb go to the gateway of a context, or end the program with the reason why not."""
    from metamcp_supervisor.cli import errors
    from metamcp_supervisor.control import contexts
    from metamcp_supervisor.control.client import Failed

    try:
        contexts.enter(words, is_typed=is_typed)
    except Failed as failed:
        errors.fail(failed.exit, str(failed), failed.details, as_json=errors.is_json(words))


def _print_version(context: click.Context, _option: click.Parameter, is_set: bool) -> None:
    if is_set:
        from metamcp_worker.ipc import codec

        kind = "pure" if codec.__file__.endswith(".py") else "compiled"
        click.echo(f"metamcp {VERSION} ({kind})")
        context.exit()


@click.command(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version,
    help="Show the version and exit.",
)  # fmt: skip
@click.option(
    "--context", metavar="NAME", expose_value=False, callback=_choose_context,
    help="Steer this gateway of contexts.toml, on another machine; else $METAMCP_CONTEXT.",
)  # fmt: skip
@click.option(ALL, is_flag=True, expose_value=False, help="With --help: show all verbs.")
def main() -> None:
    """A supervised gateway: one MCP endpoint in front of many MCP servers."""


if __name__ == "__main__":
    sys.exit(main())
