"""Test plans as text: printed plans parse to the same plan, and a compiled program's plan equals a golden text."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from egraph.tensor.text import TextError
from lower.compile import compile_program
from lower.plan_text import format_plan, parse_plan
from runtime.plan import Plan
from tests.support.lowering import GRAPHS, choose

TEXT = """plan arena_bytes=96 keep_subnormals=True notes={"threads": 1} {
  %0 = input 'x' : float32[4,6] strides=(6, 1) offset=2
  %1 = host : seq(float32)[]
  %2 = arena : float32[4,6]
  onednn 'relu' (%0) -> (%2) {"algorithm": "relu", "alpha": 0.5, "arguments": {"src": 0}} rules=('a',) predicted_us=3.5
  input 'x' : float32[batch,6] = %0
  output 'y' : float32[?] = %2
}
"""


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("prefer", ["onednn", "tvm"])
def test_plans_print_and_parse(name: str, prefer: str, tmp_path: Path, golden: Callable[[str, str], None]) -> None:
    program = choose(GRAPHS[name](), prefer)
    plan = compile_program(program, tmp_path / "a")
    text = format_plan(plan)
    assert parse_plan(text) == Plan.from_json(plan.to_json()) and format_plan(parse_plan(text)) == text
    if (name, prefer) == ("attention", "onednn"):
        golden("attention.plan", text)


def test_a_plan_written_by_hand_prints_and_parses() -> None:
    text = TEXT.replace(" strides=(6, 1)", "")
    plan = parse_plan(TEXT)
    assert format_plan(plan) == text and parse_plan(text) == plan
    assert plan.buffers[0].strides == (6, 1) and plan.buffers[0].offset == 2 and plan.inputs[0].shape == ("batch", 6)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("%2 = arena", "%3 = arena", "expected buffer %2: buffers are numbered in order\n  at: p.txt, line 4, column 3: %3 = arena"),
        ("= arena", "= area", "expected one of arena, weight, input, output, host\n  at: p.txt, line 4, column 8"),
        ("(%0) -> (%2)", "(%0) -> (%7)", "there is no buffer %7 above\n  at: p.txt, line 5, column 26"),
        ("(6, 1)", "(6,)", "expected 2 strides\n  at: p.txt, line 2, column 33"),
        ('"relu",', "relu,", "expected JSON: Expecting value\n  at: p.txt, line 5, column 44"),
        ('{"threads": 1}', "[1]", "expected a JSON object\n  at: p.txt, line 1, column 48"),
        ("= arena : float32[4,6]", "= arena : float32[n,6]", "expected known sizes\n  at: p.txt, line 4, column 16"),
        ("3.5", "'3'", "expected a number with a point, inf or nan\n  at: p.txt, line 5, column 117"),
    ],
)
def test_a_wrong_plan_is_refused_by_line_and_column(old: str, new: str, told: str) -> None:
    assert TEXT.count(old) == 1
    with pytest.raises(TextError, match=re.escape(told)):
        parse_plan(TEXT.replace(old, new), "p.txt")
