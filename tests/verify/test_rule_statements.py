"""Users' rules on infinities, conditions, indices, high ranks, identities, crops and dilation can be stated and are proved."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from egraph.rewrite.file import load_rules
from tests.support.commands import module_command
from verify.prove import Effort, prove

HEAD = """import math
from egraph.rule import Attributes, Equation, Steps, Tensor, Weight, operation, require, require_number, rule
from egraph.rule_operators import concat, exp, gather, maximum, minimum, pad, relu, reshape, sigmoid, slice_, softmax, tanh, where

"""
STATED = {
    "maximum_with_minus_infinity": """
@rule
def law(x: Tensor, c: Weight) -> Steps:
    '''max(x, -inf) = x'''
    yield maximum(x, c)
    require_number(c, -math.inf)
    yield x
""",
    "minimum_with_infinity": """
@rule
def law(x: Tensor, c: Weight) -> Steps:
    '''min(x, inf) = x'''
    yield minimum(x, c)
    require_number(c, math.inf)
    yield x
""",
    "not_twice": """
@rule
def law(p: Tensor[bool]) -> Equation:
    '''not not p = p'''
    return operation("Not", operation("Not", p)) == p
""",
    "de_morgan": """
@rule
def law(p: Tensor[bool], q: Tensor[bool]) -> Equation:
    '''not (p or q) = not p and not q'''
    return operation("Not", operation("Or", p, q)) == operation("And", operation("Not", p), operation("Not", q))
""",
    "choice_turned": """
@rule
def law(p: Tensor[bool], x: Tensor, y: Tensor) -> Equation:
    '''where(not p, x, y) = where(p, y, x)'''
    return where(operation("Not", p), x, y) == where(p, y, x)
""",
    "function_of_gathered": """
@rule
def law(x: Tensor, i: Tensor[int64]) -> Equation:
    '''relu(x[i]) = relu(x)[i]'''
    return relu(gather(x, i, axis=0)) == gather(relu(x), i, axis=0)
""",
    "equal_by_order": """
@rule
def law(x: Tensor, y: Tensor) -> Equation:
    '''x == y iff x <= y and y <= x'''
    return operation("Equal", x, y) == operation("And", operation("LessOrEqual", x, y), operation("LessOrEqual", y, x))
""",
    "tangent_by_sigmoid": """
@rule(rounding="assumes finite")
def law(x: Tensor, two: Weight, one: Weight) -> Steps:
    '''2 sigmoid(2 x) - 1 = tanh(x)'''
    yield two * sigmoid(two * x) - one
    require_number(two, 2.0)
    require_number(one, 1.0)
    yield tanh(x)
""",
    "sine_and_cosine": """
@rule(rounding="assumes finite")
def law(x: Tensor, y: Tensor) -> Equation:
    '''y (sin^2 x + cos^2 x) = y'''
    return y * (operation("Sin", x) * operation("Sin", x) + operation("Cos", x) * operation("Cos", x)) == y + x - x
""",
    "six_axes": """
@rule
def law(x: Tensor, y: Tensor, a: Attributes) -> Steps:
    '''[relu(x) relu(y)] = relu([x y]), six axes'''
    yield concat(relu(x), relu(y), a=a)
    require(x.rank == 6, "six axes")
    yield relu(concat(x, y, a=a))
""",
    "crop_of_a_crop": """
@rule
def law(x: Tensor, a: Attributes, b: Attributes) -> Steps:
    '''x[i:j][k:l] = x[i+k:i+l]: padding by negative amounts is a slice'''
    yield slice_(slice_(x, a), b)
    require(x.rank == 1 and a.steps == (1,) and b.steps == (1,), "forwards")
    yield slice_(x, starts=(a.starts[0] + b.starts[0],), ends=(a.starts[0] + b.ends[0],), steps=(1,))
""",
    "dilated_and_taken": """
@rule
def law(x: Tensor, r: Attributes, p: Attributes, q: Attributes, s: Attributes) -> Steps:
    '''every k-th of x with k - 1 zeros between is x: padding between elements is a reshape, a pad and a reshape'''
    yield slice_(reshape(pad(reshape(x, r), p), q), s)
    require(x.rank == 1 and len(r.shape) == 2 and len(q.shape) == 1, "a vector as a column")
    n, k = x.shape[0], 1 + p.after[1]
    require(r.shape == (n, 1) and p.mode == "constant" and p.before == (0, 0) and p.after[0] == 0, "between the elements")
    require(s.starts == (0,) and s.ends == (n * k - k + 1,) and s.steps == (k,), "every k-th")
    yield x
""",
}


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.py"
    path.write_text(f"{HEAD}{text}\nRULES = (law,)\n")
    return path


@pytest.mark.parametrize("name", STATED)
def test_what_is_true_can_be_stated_and_is_proved(name: str, tmp_path: Path) -> None:
    (rule,) = load_rules(written(tmp_path, STATED[name]))
    proof = prove(rule, Effort(tests=16))
    assert proof.is_proved, "\n".join(proof.explanation())


FALSE = {
    "maximum_with_infinity": STATED["maximum_with_minus_infinity"].replace("-math.inf", "math.inf"),
    "not_once": STATED["not_twice"].replace('operation("Not", operation("Not", p))', 'operation("Not", p)'),
    "de_morgan_wrongly": STATED["de_morgan"].replace('"And"', '"Or"'),
    "choice_not_turned": STATED["choice_turned"].replace("where(p, y, x)", "where(p, x, y)"),
    "another_index": STATED["function_of_gathered"].replace("gather(relu(x), i, axis=0)", "gather(relu(-x), i, axis=0)"),
    "crop_too_far": STATED["crop_of_a_crop"].replace("a.starts[0] + b.ends[0]", "b.ends[0]"),
    "six_axes_wrongly": STATED["six_axes"].replace("yield relu(concat(x, y, a=a))", "yield relu(concat(y, x, a=a))"),
}


@pytest.mark.parametrize("name", FALSE)
def test_what_is_false_is_not(name: str, tmp_path: Path) -> None:
    (rule,) = load_rules(written(tmp_path, FALSE[name]))
    assert not prove(rule, Effort(tests=16)).is_proved


# The command

TWO = """
@rule
def endless(x: Tensor) -> Steps:
    '''-(-x) = x'''
    yield -(-x)
    for _ in range(10**12):
        pass
    yield x

@rule
def quick(x: Tensor) -> Equation:
    '''relu(relu(x)) = relu(x)'''
    return relu(relu(x)) == relu(x)

RULES = (endless, quick)
"""


def command(path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return module_command("verify", path, "--cases", "8", "--no-suggestions", *arguments)


def test_a_rule_without_end_is_unknown_and_the_others_go_on(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(HEAD + TWO)
    done = command(path, "--jsonl", "--seconds", "5")
    rows: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 1 and [(row["name"], row["verdict"]) for row in rows[:2]] == [("endless", "unknown"), ("quick", "proved")]
    assert rows[0]["reason"].startswith("time")


@pytest.mark.parametrize(("ranks", "scope"), [("0..6", "ranks 1 to 6"), ("2", "rank 2")])
def test_ranks_are_those_that_are_asked_for(ranks: str, scope: str, tmp_path: Path) -> None:
    text = """
@rule
def law(x: Tensor, a: Attributes) -> Equation:
    '''relu(-softmax(x)) = relu(-softmax(-(-x)))'''
    return relu(-softmax(x, a)) == relu(-softmax(-(-x), a))
"""
    done = command(written(tmp_path, text), "--ranks", ranks, "--json")
    (row,) = json.loads(done.stdout)["rules"]
    assert row["verdict"] == "proved" and scope in row["scope"], done.stdout + done.stderr
