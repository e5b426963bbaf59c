"""What a rule file may not use is refused before it runs, with its line; all that ships and all that is documented is accepted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from egraph.errors import RuleError
from egraph.rule_file import load_rules
from egraph.rule_source import check_source
from egraph.rules import FAMILIES
from tests.test_optimize import ROOT, build_model
from verify.fingerprint import PROVER, closure

HEAD = """from egraph.rule import Equation, Steps, Tensor, require, rule
from egraph.rule_operators import relu

@rule
def law(x: Tensor, y: Tensor) -> Steps:
    '''x - y = -(y - x)'''
    yield x - y
    require(x.rank == 1, "a vector")
"""
LINE = HEAD.count("\n") + 1


def write(folder: Path, text: str) -> Path:
    path = folder / "mine.py"
    path.write_text(text)
    return path


def refused(folder: Path, text: str) -> RuleError:
    with pytest.raises(RuleError) as caught:
        load_rules(write(folder, text))
    return caught.value


IN_A_RULE = [
    ("if type(x.shape[0]) is int: pass", "`is`"),
    ("if type(x.shape[0]) == int: pass", "type"),
    ("if isinstance(x.shape[0], int): pass", "isinstance"),
    ("if issubclass(x, int): pass", "issubclass"),
    ("if callable(x): pass", "callable"),
    ("n = getattr(x.shape[0], 'value', 4)", "getattr"),
    ("if hasattr(x.shape[0], 'path'): pass", "hasattr"),
    ("setattr(x, 'seen', 1)", "setattr"),
    ("n = dir(x)", "dir"),
    ("n = vars(x)", "vars"),
    ("n = id(x.shape[0])", "id"),
    ("n = hash(x.shape[0])", "hash"),
    ("if str(x.shape[0]) == '4': pass", "str"),
    ("n = list(map(str, x.shape))", "str"),
    ("n = repr(x.shape[0])", "repr"),
    ("n = format(x.shape[0], 'd')", "format"),
    ("n = '{}'.format(x.shape[0])", ".format"),
    ("if f'{x.shape[0]}' == '4': pass", "an f-string"),
    ("if '%s' % x.shape[0] == '4': pass", "text made with %"),
    ("if x.shape[0] is 4: pass", "`is`"),
    ("if x.shape[0] is not y.shape[0]: pass", "`is`"),
    ("if None is x.shape[0] is 4: pass", "`is`"),
    ("n = eval('4')", "eval"),
    ("exec('n = 4')", "exec"),
    ("n = compile('4', '', 'eval')", "compile"),
    ("n = globals()", "globals"),
    ("n = locals()", "locals"),
    ("n = open('/dev/null')", "open"),
    ("n = input()", "input"),
    ("print(x)", "print"),
    ("breakpoint()", "breakpoint"),
    ("n = __import__('random')", "__import__"),
    ("n = __builtins__", "__builtins__"),
    ("n = x.shape[0].__class__", ".__class__"),
    ("n = x.shape[0].__doc__", ".__doc__"),
    ("n = x.term", ".term"),
    ("n = x.node", ".node"),
    ("import random", "a rule file imports random"),
    ("global N", "global"),
    ("while True: pass", "while"),
    ("while x.shape[0] > 0: n = 1", "while"),
    ("match x.shape[0]:\n        case int(): pass", "a pattern of `match`"),
    ("match x.shape[0]:\n        case True: pass", "a pattern of `match`"),
    ("try: n = x.shape[7]\n    except IndexError: n = 1", "try"),
    ("with x: pass", "with"),
    ("STATE.append(1)", "a change of STATE"),
    ("STATE[0] = 1", "a change of STATE"),
    ("STATE[0] += 1", "a change of STATE"),
    ("del STATE[0]", "a change of STATE"),
    ("STATE.inner.update(n=1)", "a change of STATE"),
    ("n = next(STATE)", "a change of STATE"),
    ("law.calls = 1", "a change of law"),
    ("def inner(n, seen=[]): return seen", "a default argument that can change"),
    ("inner = lambda n, seen=dict(): seen", "a default argument that can change"),
    ("async def inner(): pass", "async"),
]


@pytest.mark.parametrize(("statement", "told"), IN_A_RULE, ids=[statement.split("\n")[0] for statement, _ in IN_A_RULE])
def test_what_no_proof_vouches_for_is_refused_with_its_line(statement: str, told: str, tmp_path: Path) -> None:
    error = refused(tmp_path, f"{HEAD}    {statement}\n    yield -(y - x)\nSTATE = []\nRULES = (law,)\n")
    assert error.what.startswith(told) and ": " in error.what and error.fix
    assert error.where in (f"{tmp_path}/mine.py:{LINE}", f"{tmp_path}/mine.py:{LINE + 1}")
    assert error.where.endswith(f":{LINE}") or "case" in statement


ELSEWHERE = [
    ("from random import random", 1, "a rule file imports random"),
    ("import os.path", 1, "a rule file imports os.path"),
    ("from time import monotonic", 1, "a rule file imports time"),
    ("from itertools import count", 1, "a rule file imports itertools.count"),
    ("import itertools\nN = itertools.cycle((1, 2))", 2, "a rule file imports itertools.cycle"),
    ("from functools import singledispatch", 1, "a rule file imports functools.singledispatch"),
    ("import functools\n@functools.cache\ndef f(n): return n", 2, "a rule file imports functools.cache"),
    ("from dataclasses import sys", 1, "a rule file imports dataclasses.sys"),
    ("import typing\nN = typing.sys", 2, "a rule file imports typing.sys"),
    ("import collections.abc", 1, "a rule file imports collections.abc"),
    ("import numpy as np", 1, "a rule file imports numpy"),
    ("from egraph.tensor import TensorType", 1, "a rule file imports egraph.tensor"),
    ("from egraph.rule import TensorType", 1, "a rule file imports egraph.rule.TensorType"),
    ("from egraph.rules.family import inspect", 1, "a rule file imports egraph.rules.family.inspect"),
    ("import egraph.rule", 1, "a rule file imports egraph.rule"),
    ("from egraph.rule_operators import *", 1, "a rule file imports egraph.rule_operators.*"),
    ("from . import other", 1, "a rule file imports ."),
    ("import tests", 1, "a rule file imports tests"),
    ("import __main__", 1, "a rule file imports __main__"),
    ("class Text(str): pass", 1, "str"),
    ("N = id(3)", 1, "id"),
    ("def name(op: str):\n    return repr(op)", 2, "repr"),
    ("def seen(n, found=set()):\n    return found", 1, "a default argument that can change"),
    ("write = lambda n: f'{n}'", 1, "an f-string"),
    ("def text(n):\n    return f'{n}'", 2, "an f-string"),
    ("def text(n: 'Tensor') -> str:\n    return f'{n}'", 2, "an f-string"),
]


@pytest.mark.parametrize(("text", "line", "told"), ELSEWHERE, ids=[text.replace("\n", " ") for text, _, _ in ELSEWHERE])
def test_what_no_proof_vouches_for_is_refused_outside_of_rules(text: str, line: int, told: str, tmp_path: Path) -> None:
    error = refused(tmp_path, f"{text}\nRULES = ()\n")
    assert error.what.startswith(told + ":") and error.fix
    assert error.where == f"{tmp_path}/mine.py:{line}"


NAMING = """
def text(op: str, number: int) -> str:
    return f"{op}_{number}"

"""


def test_text_is_for_names_and_reasons(tmp_path: Path) -> None:
    accepted = HEAD + """    require(x.shape == y.shape, f"shapes differ: {x.shape} and " + str(y.shape))
    assert x.shape[0] > 0, f"{x.shape[0]}"
    if x.rank > 9:
        raise ValueError("%d axes" % x.rank)
    require(x.shape == y.shape, NAME)
    yield -(y - x)
""" + NAMING + "NAME = text('law', 1)\nTITLES = [f'{NAME} {n}' for n in (1, 2)]\nRULES = (law,)\n"
    assert [rule.name for rule in load_rules(write(tmp_path, accepted))] == ["law"]


@pytest.mark.parametrize(
    "use",
    [
        "    n = text('', x.shape[0])\n    yield -(y - x)\nRULES = (law,)\n",
        "    n = other('', x.shape[0])\n    yield -(y - x)\nother = text\nRULES = (law,)\n",
        "    n = other(x.shape[0])\n    yield -(y - x)\nfrom functools import partial\nother = partial(text, '')\nRULES = (law,)\n",
        "    n = TABLE['t']('', x.shape[0])\n    yield -(y - x)\nTABLE = {'t': text}\nRULES = (law,)\n",
        "    def require(n, reason): return reason\n    n = require(1, text('', 1))\n    yield -(y - x)\nRULES = (law,)\n",
    ],
)
def test_a_function_that_rules_call_runs_on_sizes(use: str, tmp_path: Path) -> None:
    error = refused(tmp_path, HEAD + use + NAMING)
    assert error.what.startswith("an f-string") and error.where == f"{tmp_path}/mine.py:{(HEAD + use).count(chr(10)) + 3}"


def test_a_function_of_one_s_own_that_is_called_require_gives_no_reasons(tmp_path: Path) -> None:
    use = "    def require(n, reason): return reason\n    n = require(1, f'{x.shape}')\n    yield -(y - x)\nRULES = (law,)\n"
    assert refused(tmp_path, HEAD + use).what.startswith("an f-string")


def test_what_a_call_makes_it_may_change(tmp_path: Path) -> None:
    text = HEAD + """    found, todo, input = [], list(x.shape), {}
    while todo:
        found.append(todo.pop())
    def add(n: int) -> None:
        found.append(n)
    add(3)
    input["id"] = next(iter(found), None)
    require(input["id"] is not None, "sizes")
    match x.rank:
        case 1 | 2:
            found[0] += 1
    yield -(y - x)

RULES = (law,)
"""
    assert len(load_rules(write(tmp_path, text))) == 1


def test_what_a_factory_makes_outlives_the_calls_of_its_rules(tmp_path: Path) -> None:
    text = """from egraph.rule import Equation, Tensor, rule

def family(op: str):
    calls = []

    @rule
    def law(x: Tensor) -> Equation:
        '''-(-x) = x'''
        calls.append(1)
        return -(-x) == x

    return law

RULES = (family("Neg"),)
"""
    assert refused(tmp_path, text).where.endswith(":9")


def test_modules_beside_the_file_are_read_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    neighbour = tmp_path / "einsat_neighbour_of_a_test.py"
    mine = f"import {neighbour.stem}\n{HEAD}    n = {neighbour.stem}.text(x.shape[0])\n    yield -(y - x)\nRULES = (law,)\n"
    for text, line in (("import random\n", 1), ("\ndef text(n: int) -> str:\n    return f'{n}'\n", 3)):
        neighbour.write_text(text)
        assert refused(tmp_path, mine).where == f"{neighbour}:{line}"
    neighbour.write_text("def text(n: int) -> int:\n    return n\n")
    assert len(load_rules(write(tmp_path, mine))) == 1
    del sys.modules[neighbour.stem]
    (tmp_path / "einsat_folder_of_a_test").mkdir()
    (tmp_path / "einsat_folder_of_a_test/__init__.py").write_text("")
    assert "imports einsat_folder_of_a_test" in refused(tmp_path, "import einsat_folder_of_a_test\nRULES = ()\n").what


@pytest.mark.parametrize("family", FAMILIES)
def test_the_rules_that_ship_are_accepted(family: str) -> None:
    check_source(ROOT / "egraph/rules" / f"{family}.py")


@pytest.mark.parametrize("page", ["docs/writing-rules.md", "docs/rules-tutorial.md", "CONTRIBUTING.md"])
def test_the_rules_in_documents_are_accepted(page: str, tmp_path: Path) -> None:
    blocks = [block.split("```")[0] for block in (ROOT / page).read_text().split("```python\n")[1:]]
    files = [block for block in blocks if "RULES = (" in block and "isinstance(" not in block]
    assert len(files) > 0
    for text in files:
        check_source(write(tmp_path, text))


def test_reading_rule_files_is_no_part_of_what_certificates_depend_on() -> None:
    prover = closure(frozenset({PROVER}))
    assert not prover & {"egraph.rule_source", "egraph.rule_constructs", "egraph.rule_file"} and "egraph.rule" in prover


def test_both_commands_refuse_the_false_rule(tmp_path: Path) -> None:
    path = write(tmp_path, f"{HEAD}    yield y - x if type(x.shape[0]) is int and x.shape[0] > 900 else -(y - x)\nRULES = (law,)\n")
    model = build_model(tmp_path / "m.onnx")
    environment = {**os.environ, "XDG_DATA_HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    for command in (["verify", path], ["egraph.optimize", model, "--rules", path, "-o", tmp_path / "out"]):
        done = subprocess.run(
            [sys.executable, "-m", *map(str, command)], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 2 and f"{path}:{LINE}" in done.stderr and "`is`: equal sizes" in done.stderr, done.stderr
        assert not (tmp_path / "out").exists()
