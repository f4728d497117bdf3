"""Values that a program prints: the references `${cmd:WORDS}` and `${keyring:SERVICE/USER}`.

Owns: when these programs run (once per load, and only after all files were read), their limits, and
the sentence about a failure, which never contains what a program printed. Never: whether they may
run at all (`confirmation`, by the caller of `sources.load`).

The keyring is read by a program too: its libraries would stay in the supervisor's memory, and a
keyring that is locked waits for its user.
"""

import contextlib
import os
import select
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from pathlib import Path

from metamcp_supervisor.config import environment, installation
from metamcp_supervisor.config.document import shorten
from metamcp_supervisor.config.references import Unresolved

COMMAND_S_MAX = 10.0
"""Maximum seconds of a command; each one delays the start of the gateway."""
OUTPUT_BYTES_MAX = 64 * 1024
"""Maximum bytes of its output, as of a file with a secret."""
PROGRAMS_MAX = 64
"""Maximum number of different references of this kind in a configuration."""
NOT_RUN = "https://not-run.invalid"
"""Value of a reference before its program runs; any setting accepts it, also an URL."""
_CHUNK_BYTES = 16 * 1024
_STARTS = threading.Lock()
_RUNNING: set[int] = set()


@contextlib.contextmanager
def block_starts() -> Generator[frozenset[int]]:
    """Yield the pids of the programs that run: children of this process which are not orphans. No
    other program starts in the `with` block. A reload runs them in a thread."""
    with _STARTS:
        yield frozenset(_RUNNING)


class PrintedValues:
    """Values of one load. `noted`: references that were met so far, as `cmd:pass show x`; `runs`:
    whether to run the programs, before that each value is NOT_RUN; `refusal`: sentence for every
    reference, if nothing may run."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.noted: dict[str, None] = {}
        self.runs = False
        self.refusal = ""
        names = environment.select_variables(environ, ["*"])
        self._environ = {name: environ[name] for name in names}
        self._found: dict[tuple[Path, str], tuple[str, str]] = {}

    def of_file(self, base: Path, why_not: str) -> Callable[[str, str], str]:
        """Return the source of values for a file. `base`: folder of the file, in which its commands
        run; `why_not`: why commands in it do not run, or an empty text."""
        return partial(self._value, base, why_not)

    def _value(self, base: Path, why_not: str, kind: str, argument: str) -> str:
        """Return the value of a reference. Raises Unresolved."""
        words = _keyring_words(argument) if kind == "keyring" else _command_words(argument, why_not)
        reference = f"{kind}:{argument}"
        self.noted.setdefault(reference)
        if len(self.noted) > PROGRAMS_MAX:
            raise Unresolved(f"has more than {PROGRAMS_MAX} different commands in references")
        if self.refusal:
            raise Unresolved(self.refusal)
        if not self.runs:
            return NOT_RUN
        if (base, reference) not in self._found:
            subject = f"the command '{shorten(words[0])}'"
            if kind == "keyring":
                subject = f"the look-up of '{shorten(argument)}' in the keyring"
            self._found[base, reference] = self._run_program(words, base, subject)
        value, reason = self._found[base, reference]
        if reason:
            raise Unresolved(reason)
        return value

    def _run_program(self, words: Sequence[str], base: Path, subject: str) -> tuple[str, str]:
        """Run a program. Return what it printed, or why there is nothing, as a sentence."""
        data, reason = program_output(words, base, self._environ, subject)
        if reason:
            return "", reason
        try:
            text = data.decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError:
            return "", f"{subject} printed something that is not UTF-8 text"
        return text, "" if text else f"{subject} printed nothing"


def program_output(
    words: Sequence[str],
    base: Path,
    environ: Mapping[str, str],
    subject: str,
    bytes_max: int = OUTPUT_BYTES_MAX,
    stderr: int = subprocess.DEVNULL,
) -> tuple[bytes, str]:
    """Run a program in the folder `base`. Return what it printed, and why it failed, as a sentence
    that begins with `subject`; empty if it did not. `stderr`: DEVNULL, or STDOUT for both."""
    try:
        with _STARTS:
            process = subprocess.Popen(
                words, cwd=base, env=environ, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=stderr, start_new_session=True,
            )  # fmt: skip
            _RUNNING.add(process.pid)
    except (OSError, ValueError) as error:
        return b"", f"{subject} cannot be started: {getattr(error, 'strerror', None) or error}"
    try:
        with process:
            data = _output(process, time.monotonic() + COMMAND_S_MAX, bytes_max)
    except subprocess.TimeoutExpired:
        return b"", f"{subject} did not end within {COMMAND_S_MAX:.0f} s"
    finally:
        _RUNNING.discard(process.pid)
    if len(data) > bytes_max:
        return b"", f"{subject} printed more than {bytes_max} bytes"
    if code := process.returncode:
        end = f"failed with exit code {code}" if code > 0 else f"died by signal {-code}"
        return data, f"{subject} {end}"
    return data, ""


def _output(process: subprocess.Popen[bytes], end: float, bytes_max: int) -> bytes:
    """Return the output of a process when it has ended, or as soon as there is too much of it;
    then, and when it is late, kill it. `end`: monotonic time. Raises TimeoutExpired."""
    assert process.stdout is not None
    fd = process.stdout.fileno()
    poll, data = select.poll(), bytearray()
    poll.register(fd, select.POLLIN)
    try:
        while len(data) <= bytes_max:
            if not poll.poll(max(0.0, end - time.monotonic()) * 1000):
                raise subprocess.TimeoutExpired("", COMMAND_S_MAX)
            chunk = os.read(fd, _CHUNK_BYTES)
            if not chunk:
                process.wait(max(0.0, end - time.monotonic()))
                break
            data += chunk
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return bytes(data)


def _command_words(argument: str, why_not: str) -> list[str]:
    try:
        words = shlex.split(argument)
    except ValueError:
        raise Unresolved("'${cmd:…}' has a quote without its end") from None
    if not words:
        raise Unresolved("'${cmd:}' names no command")
    if why_not:
        raise Unresolved(
            f"the command '{shorten(words[0])}' does not run, because this file {why_not}"
        )
    return words


def _keyring_words(argument: str) -> list[str]:
    service, _, user = argument.rpartition("/")
    if not service or not user:
        raise Unresolved(
            f"'${{keyring:{shorten(argument)}}}' must be written '${{keyring:SERVICE/USER}}'"
        )
    if reason := installation.describe_missing(installation.KEYRING):
        raise Unresolved(reason)
    # Without -P, a keyring.py in the folder would be run.
    return [sys.executable, "-P", "-m", "keyring", "get", "--", service, user]
