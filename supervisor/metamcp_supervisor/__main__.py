"""The `metamcp` command: finds the verb, imports only its file, and runs it."""

import importlib
import sys

import click

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
    "login": (
        "metamcp_supervisor.cli.login:login",
        "Get the gateway authorized to use a remote server.",
    ),
    "logout": ("metamcp_supervisor.cli.login:logout", "Remove the tokens for a remote server."),
    "config": (
        "metamcp_supervisor.cli.config:config",
        "Check and show the configuration.",
    ),
    "systemd": (
        "metamcp_supervisor.cli.systemd:systemd",
        "Run the gateway as a service of systemd.",
    ),
}


class LazyGroup(click.Group):
    """Knows every verb by name and help; imports a verb's file when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
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
