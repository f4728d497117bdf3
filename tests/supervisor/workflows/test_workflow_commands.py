"""`metamcp workflow check`, `graph` and `schema`, which need no gateway."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from metamcp_supervisor.__main__ import main
from tests.supervisor.configs import write

FLOW = """\
name: one
inputs: {path: {type: string}, most: {type: integer, default: 1}, key: {type: string, secret: true}}
steps:
  - parallel:
      - {id: read, call: fs.read, with: {path: "${{ inputs.path }}"}}
      - {wait: 5s}
  - foreach: [1, 2]
    steps:
      - switch:
          - when: item > 1
            steps: [{ai: Say "<hello>"}]
          - else: true
            steps: [{elicit: {message: Go on?, schema: {type: object}}}]
  - {output: 1, when: inputs.most > 1}
"""
DRAWN = """\
one(path, most?, key (secret))
├─ parallel
│  ├─ read: call fs.read
│  └─ wait 5s
├─ foreach item in [1, 2]
│  └─ switch
│     when item > 1
│     └─ ai: Say "<hello>"
│     else
│     └─ elicit: Go on?
└─ output, when inputs.most > 1
"""


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["workflow", *map(str, arguments)])


@pytest.mark.promise("M52")
def test_check_tells_what_is_good_and_every_problem_with_its_line(tmp_path: Path) -> None:
    good = write(tmp_path, "one.yaml", FLOW)
    assert run("check", good, "metamcp:add-endpoint").output == (
        "ok: 2 workflows: add-endpoint, one\n"
    )
    bad = write(tmp_path, "two.yaml", "name: two\nsteps:\n  - {cal: a}\n  - {wait: soon}\n")
    got = run("check", tmp_path)
    assert got.exit_code == 65
    lines = got.output.splitlines()
    assert lines[0] == f"{bad}:3: steps[0].cal is not a key here; did you mean 'call'?"
    assert lines[-1].startswith(f"{bad}:4: steps[1].wait must be a duration")
    told = json.loads(run("check", tmp_path, "--json").output)
    assert (told["ok"], told["workflows"], told["problems"]) == (False, ["one"], lines)


def test_graph_draws_the_steps_as_text(tmp_path: Path) -> None:
    assert run("graph", write(tmp_path, "one.yaml", FLOW)).output == DRAWN


def test_graph_draws_a_flow_chart_of_mermaid(tmp_path: Path) -> None:
    lines = run("graph", write(tmp_path, "one.yaml", FLOW), "--format", "mermaid").output
    drawn = [one.strip() for one in lines.splitlines()]
    assert drawn[0] == "flowchart TD"
    assert 's7["ai: Say &quot;&lt;hello&gt;&quot;"]' in drawn
    arrows = {one for one in drawn if "-->" in one}
    assert arrows == {
        "s1 --> s2", "s2 --> s3", "s2 --> s4", "s3 --> s5", "s4 --> s5", 's5 -->|"each"| s6',
        's6 -->|"when item &gt; 1"| s7', 's6 -->|"else"| s8', "s7 --> s5", "s8 --> s5",
        's5 -->|"all"| s9', "s9 --> s10",
    }  # fmt: skip


def test_graph_refuses_a_wrong_file(tmp_path: Path) -> None:
    got = run("graph", write(tmp_path, "one.yaml", "name: one\n"))
    assert (got.exit_code, "steps must be a list with at least one step" in got.output) == (
        65,
        True,
    )
    many = write(tmp_path, "many.yaml", "name: Two Words\nsteps:\n  - id: a\n    cal: b.c\n")
    for words in (("graph", many), ("run", many)):
        lines = run(*words).output.splitlines()
        assert "did you mean 'call'?" in lines[1]
        assert all(line.startswith(f"metamcp: {many}:") for line in lines)


def test_schema_prints_a_json_schema() -> None:
    assert json.loads(run("schema").output)["title"] == "Workflow of MetaMCP"
