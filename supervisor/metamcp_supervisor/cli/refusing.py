"""A command that cannot do what it was asked: one sentence on stderr and an exit code.

Owns: `Refused`, and the one place where it, and trouble with a file, become a sentence. Never: what
is refused.
"""

import click

from metamcp_supervisor.verbs import Exit
from metamcp_supervisor.watched.client import Failed


class Refused(Exception):
    """One sentence, and the exit code."""

    def __init__(self, message: str, code: Exit = Exit.FAILED) -> None:
        super().__init__(message)
        self.code = code


class _Refusing(click.Command):
    def invoke(self, ctx: click.Context) -> object:
        try:
            found: object = super().invoke(ctx)
        except Refused as refusal:
            say(str(refusal))
            raise SystemExit(refusal.code) from None
        except Failed as failed:
            say(str(failed))
            raise SystemExit(failed.exit) from None
        except OSError as error:
            say(f"{error.filename or 'a file'}: {error.strerror}")
            raise SystemExit(Exit.FAILED) from None
        return found


class Command(_Refusing):
    """A verb that may be refused."""


class Group(_Refusing, click.Group):
    """Verbs that may be."""


def say(sentence: str) -> None:
    click.echo(f"metamcp: {sentence}", err=True)
