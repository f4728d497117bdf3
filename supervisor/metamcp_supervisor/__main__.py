"""The `metamcp` command: finds the verb, imports only its file, and runs it."""

import importlib
import sys

import click

from metamcp_worker import lean

VERBS: dict[str, tuple[str, str]] = {
    "up": ("metamcp_supervisor.cli.up:up", "Start the gateway in the foreground."),
    "serve": ("metamcp_supervisor.cli.up:serve", "Run the gateway as a service."),
    "ctl": ("metamcp_supervisor.cli.ctl:ctl", "Look at and steer a running gateway."),
    "calls": (
        "metamcp_supervisor.cli.finished:calls",
        "Show recorded calls that are over ('ctl calls': those under way).",
    ),
    "replay": ("metamcp_supervisor.cli.replay:replay", "Make a recorded call once more."),
    "connect": (
        "metamcp_supervisor.cli.connect:connect",
        "Be an MCP server on stdin and stdout: a bridge to the gateway.",
    ),
    "install": (
        "metamcp_supervisor.cli.install:install",
        "Put MetaMCP into the configuration of a client.",
    ),
    "uninstall": ("metamcp_supervisor.cli.install:uninstall", "Take it out again."),
    "snippet": (
        "metamcp_supervisor.cli.install:snippet",
        "Print what a client needs in its configuration.",
    ),
    "import": (
        "metamcp_supervisor.cli.importing:import_",
        "Take over the servers of other clients.",
    ),
    "toolsets": (
        "metamcp_supervisor.cli.toolsets:toolsets",
        "Look at and change tool sets: named choices of tools.",
    ),
    "login": (
        "metamcp_supervisor.cli.login:login",
        "Get the gateway authorized to use a remote server.",
    ),
    "logout": ("metamcp_supervisor.cli.login:logout", "Remove the tokens for a remote server."),
    "tools": (
        "metamcp_supervisor.cli.tools:tools",
        "List the tools that the servers offered last, and what drifted.",
    ),
    "lock": (
        "metamcp_supervisor.cli.lock:lock",
        "Say which definitions of tools are approved.",
    ),
    "config": (
        "metamcp_supervisor.cli.config:config",
        "Check and show the configuration.",
    ),
    "systemd": (
        "metamcp_supervisor.cli.systemd:systemd",
        "Run the gateway as a service of systemd.",
    ),
}

STAYING = {"up", "serve"}
"""Verbs whose process stays. It speaks TLS with nobody: workers do, and the exporter of traces does
so without asyncio."""


class LazyGroup(click.Group):
    """Knows every verb by name and help; imports a verb's file when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        if cmd_name in STAYING:
            lean.import_when_used("asyncio.sslproto", "msgspec.inspect")
            lean.import_without("ssl", "asyncio")
            lean.import_without("typing_extensions", "msgspec")
        module, _, name = VERBS[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, short) for name, (_, short) in VERBS.items()])


@click.command(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="metamcp", message="metamcp %(version)s")
def main() -> None:
    """One MCP endpoint in front of many MCP servers, supervised."""


if __name__ == "__main__":
    sys.exit(main())
