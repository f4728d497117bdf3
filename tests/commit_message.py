"""The form of a commit message, as a hook judges it before the commit and a test afterwards.

Owns: the rules of docs/hacking.md, "Commits". `make setup` installs the hook, which runs this file
with the file of a message. Never: anything beyond the standard library, since a hook runs with any
Python.
"""

import re
import sys
from pathlib import Path

SUBJECT_CHARACTERS_MAX = 72
SUBJECT = re.compile(r"[a-z][a-z0-9 ._/,-]*: [a-z]+[a-z-]*\b.*[^.\s]")
#: A verb in another form than the imperative, or a word that begins a sentence about the state of
#: things.
NOT_IMPERATIVE = re.compile(r"(?:a|an|the|it|this|more|new|some|wip|\w+ing|\w+ed)\b")
IMPERATIVES = {"bring", "embed", "exceed", "feed", "need", "proceed", "seed", "shed", "speed"}
"""Imperatives that end as another form does."""
SCISSORS = "# ------------------------ >8 ------------------------"
"""Git's line between a message and the difference that `commit --verbose` shows below it."""


def mistakes(message: str) -> list[str]:
    """Return what is wrong with a message: a sentence for each rule that it breaks."""
    subject, _, rest = message.strip().partition("\n")
    sentences: list[str] = []
    if len(subject) > SUBJECT_CHARACTERS_MAX:
        sentences.append(f"the subject has {len(subject)} of {SUBJECT_CHARACTERS_MAX} characters")
    if not SUBJECT.fullmatch(subject):
        sentences.append(
            "the subject is not 'component: imperative', without a full stop at its end"
        )
    else:
        verb = subject.partition(": ")[2]
        if NOT_IMPERATIVE.match(verb) and verb.split()[0] not in IMPERATIVES:
            sentences.append(f"{verb.split()[0]!r} is not a verb in the imperative")
    if ";" in subject:
        sentences.append("the subject has two topics; make two commits")
    if re.match(r"merge\b|fixup!|squash!|.*\bwip\b", subject, re.IGNORECASE):
        sentences.append("the commit is unfinished or a merge; squash or rebase it")
    if not re.match(r"\n\S", rest):
        sentences.append("the body is missing: behind an empty line, why, and how it was seen")
    return sentences


def main(path: str) -> int:
    """Print the mistakes of the message in this file. Returns the exit code of the hook."""
    text = Path(path).read_text(encoding="utf-8", errors="replace").partition(SCISSORS)[0]
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    sentences = mistakes("\n".join(lines))
    for sentence in sentences:
        sys.stderr.write(f"commit message: {sentence}\n")
    return 1 if sentences else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
