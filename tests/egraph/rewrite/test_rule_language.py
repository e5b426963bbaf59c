"""A rule file with a forbidden construct is refused with its line before evaluation; all shipped and documented rules are read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import onnx.parser
import pytest

from egraph.engine.saturate import Limits, saturate
from egraph.errors import RuleError
from egraph.onnx import importer
from egraph.rewrite import syntax
from egraph.rewrite.file import load_rules, read_rules
from egraph.rewrite.parts import pieces
from egraph.rewrite.values import Refusal
from tests.support.commands import build_model
from tests.support.paths import ROOT

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
    ("n = x.shape[0].bit_length()", ".bit_length"),
    ("n = float(x.shape[0])", "float"),
    ("n = pow(x.shape[0], -1)", "pow"),
    ("n = round(0.5)", "round"),
    ("n = iter(x.shape)", "iter"),
    ("if f'{x.shape[0]}' == '4': pass", "an f-string"),
    ("if (n := x.shape[0]) == 4: pass", ":="),
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
    ("n = x.shape[0].__class__", ".__class__"),
    ("n = x.shape[0].__doc__", ".__doc__"),
    ("n = x.term", ".term"),
    ("n = x.node", ".node"),
    ("n = x.shape[0] & 1", "`x.shape[0] & 1`"),
    ("n = x.shape[0] << 3", "`x.shape[0] << 3`"),
    ("n = ~x.shape[0]", "`~x.shape[0]`"),
    ("n = 1j", "`1j`"),
    ("n = b'4'", "`b'4'`"),
    ("n = {**{}}", "`{**{}}`"),
    ("global N", "global"),
    ("match x.shape[0]:\n        case 1: pass", "match"),
    ("try: n = x.shape[7]\n    except IndexError: n = 1", "try"),
    ("with x: pass", "with"),
    ("raise ValueError", "raise"),
    ("del x", "del"),
    ("class Inner: pass", "class"),
    ("n = await x", "await"),
    ("law.calls = 1", "a change of law.calls"),
    ("async def inner(): pass", "async"),
]


@pytest.mark.parametrize(("statement", "told"), IN_A_RULE, ids=[statement.split("\n")[0] for statement, _ in IN_A_RULE])
def test_what_the_language_has_not_is_refused_with_its_line(statement: str, told: str, tmp_path: Path) -> None:
    error = refused(tmp_path, f"{HEAD}    {statement}\n    yield -(y - x)\nSTATE = []\nRULES = (law,)\n")
    assert error.what.startswith(told + ":") and error.fix
    assert error.where == f"{tmp_path}/mine.py:{LINE}"


ELSEWHERE = [
    ("from random import random", "random", "a rule file imports random"),
    ("import os", "os", "a rule file imports os"),
    ("from time import monotonic", "monotonic", "a rule file imports time"),
    ("from itertools import count", "count", "a rule file imports itertools.count"),
    ("import numpy as np", "np", "a rule file imports numpy"),
    ("from egraph.ir import TensorType", "TensorType", "a rule file imports egraph.ir"),
    ("from egraph.rule import TensorType", "TensorType", "a rule file imports egraph.rule.TensorType"),
    ("from egraph.rules.family import inspect", "inspect", "inspect is a module"),
    ("import egraph.rule", "egraph", "import egraph.rule"),
    ("from . import other", "other", "an import without names"),
    ("import tests", "tests", "a rule file imports tests"),
    ("class State: pass", "State", "class"),
    ("N = id(3)", "N", "id"),
    ("N = iter((1, 2))", "N", "iter"),
]


@pytest.mark.parametrize(("text", "name", "told"), ELSEWHERE, ids=[text for text, _, _ in ELSEWHERE])
def test_what_a_file_has_besides_is_refused_where_a_rule_uses_it(text: str, name: str, told: str, tmp_path: Path) -> None:
    error = refused(tmp_path, f"{text}\n{HEAD}    n = {name}\n    yield -(y - x)\nRULES = (law,)\n")
    assert error.what.startswith(told) and error.fix
    assert error.where == f"{tmp_path}/mine.py:1"


def test_one_rule_that_is_refused_leaves_the_others(tmp_path: Path) -> None:
    good = HEAD.replace("def law", "def good").split("@rule")[1]
    text = f"import random\n{HEAD}    n = random.random()\n    yield -(y - x)\n\n@rule{good}    yield -(y - x)\n\nRULES = (law, good)\n"
    bad, other = read_rules(write(tmp_path, text))
    assert isinstance(bad, Refusal) and bad.name == "law" and not isinstance(other, Refusal) and other.name == "good"


def test_text_is_for_names_and_reasons(tmp_path: Path) -> None:
    naming = """
def text(op: str, number: int) -> str:
    return f"{op}_{number}"

NAME = text("law", 1)
TITLES = [f"{NAME} {n}" for n in (1, 2)]
"""
    accepted = naming + HEAD + """    require(x.shape == y.shape, f"shapes differ: {x.shape} and {y.shape}")
    assert x.shape[0] > 0, f"{x.shape[0]}"
    require(x.shape == y.shape, NAME)
    yield -(y - x)
RULES = (law,)
"""
    assert [rule.name for rule in load_rules(write(tmp_path, accepted))] == ["law"]
    for use in ("    n = text('', x.shape[0])\n", "    n = other('', x.shape[0])\n", "    n = inner(x.shape[0])\n"):
        text = naming + "\nfrom functools import partial\nother = text\ndef inner(n):\n    return text('', n)\n" + HEAD + use
        assert refused(tmp_path, text + "    yield -(y - x)\nRULES = (law,)\n").what.startswith("an f-string")


STATES = [
    ("STATE = []", "    STATE.append(1)\n"), ("STATE = [1]", "    STATE[0] = 2\n"), ("STATE = ([1],)", "    STATE[0].append(2)\n"),
    ("STATE = {'a': [1]}", "    STATE['a'].append(2)\n"), ("STATE = (n for n in (1, 2, 3))", "    n = next(STATE, 0)\n"),
    ("STATE = zip((1, 2), (3, 4))", "    n = next(STATE, 0)\n"), ("STATE = reversed((1, 2))", "    n = next(STATE, 0)\n"),
    ("def inner(n, seen=[]):\n    seen.append(n)\n    return seen", "    n = inner(1)\n"),
    ("inner = lambda n, seen=(m for m in (1, 2)): next(seen, 0)", "    n = inner(1)\n"),
]


@pytest.mark.parametrize(("above", "use"), STATES, ids=[above.split("\n")[0] for above, _ in STATES])
def test_nothing_that_changes_outlives_a_call(above: str, use: str, tmp_path: Path) -> None:
    from egraph.rule import Binding
    from egraph.tensor import TensorType

    path = write(tmp_path, f"{above}\n{HEAD}{use}    yield -(y - x)\nRULES = (law,)\n")
    with pytest.raises(RuleError, match="can change"):
        load_rules(path)[0].apply(Binding({name: TensorType("float32", (3,)) for name in "xy"}, {}))  # type: ignore[arg-type]  # one rule


def test_what_a_call_makes_it_may_change(tmp_path: Path) -> None:
    text = HEAD + """    found, todo, least = [], list(x.shape), 0
    while todo:
        found.append(todo.pop())
        least -= 1
    found[0] += 1
    require(found[0] > least, "sizes")
    yield -(y - x)

RULES = (law,)
"""
    assert len(load_rules(write(tmp_path, text))) == 1


def test_modules_beside_the_file_are_read_too(tmp_path: Path) -> None:
    neighbour = tmp_path / "einsat_neighbour_of_a_test.py"
    mine = f"import {neighbour.stem}\n{HEAD}    n = {neighbour.stem}.text(x.shape[0])\n    yield -(y - x)\nRULES = (law,)\n"
    neighbour.write_text("\ndef text(n: int) -> str:\n    return f'{n}'\n")
    assert refused(tmp_path, mine).where == f"{neighbour}:3"
    neighbour.write_text("import random\n\ndef text(n: int) -> int:\n    return random.choice(n)\n")
    assert refused(tmp_path, mine).where == f"{neighbour}:1"
    neighbour.write_text("def text(n: int) -> int:\n    return n\n")
    assert len(load_rules(write(tmp_path, mine))) == 1
    (tmp_path / "einsat_folder_of_a_test").mkdir()
    (tmp_path / "einsat_folder_of_a_test/__init__.py").write_text("")
    folder = f"import einsat_folder_of_a_test as n\n{HEAD}    m = n\n    yield x\nRULES = (law,)\n"
    assert "imports einsat_folder_of_a_test" in refused(tmp_path, folder).what


@pytest.mark.parametrize("page", ["docs/writing-rules.md", "docs/rules-tutorial.md", "CONTRIBUTING.md"])
def test_the_rules_in_documents_are_accepted(page: str, tmp_path: Path) -> None:
    blocks = [block.split("```")[0] for block in (ROOT / page).read_text().split("```python\n")[1:]]
    files = [block for block in blocks if "RULES = (" in block and "isinstance(" not in block]
    assert len(files) > 0
    for text in files:
        assert load_rules(write(tmp_path, text))


@pytest.mark.usefixtures("forked_python")
def test_both_commands_refuse_the_false_rule(tmp_path: Path) -> None:
    path = write(tmp_path, f"{HEAD}    yield y - x if type(x.shape[0]) is int and x.shape[0] > 900 else -(y - x)\nRULES = (law,)\n")
    model = build_model(tmp_path / "m.onnx")
    environment = {**os.environ, "XDG_DATA_HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    for code, command in ((1, ["verify", path]), (2, ["egraph.optimize", model, "--rules", path, "-o", tmp_path / "out"])):
        done = subprocess.run(
            [sys.executable, "-m", *map(str, command)], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        told = done.stdout + done.stderr
        assert done.returncode == code and f"{path}:{LINE}" in told and "`is`: equal sizes" in told, told
        assert not (tmp_path / "out").exists()


CONDITIONS = """from egraph.rule import Attributes, Steps, Tensor, require, rule
from egraph.rule_operators import transpose

@rule
def there_and_back(p: Tensor[bool], a: Attributes, b: Attributes) -> Steps:
    '''p^T^T = p'''
    yield transpose(transpose(p, a), b)
    require(tuple(a.perm[axis] for axis in b.perm) == tuple(range(p.rank)), "back")
    yield p

RULES = (there_and_back,)
"""


@pytest.mark.parametrize(("dtype", "unions"), [("bool", 1), ("float", 0)])
def test_a_variable_of_an_element_type_matches_that_alone(dtype: str, unions: int, tmp_path: Path) -> None:
    model = onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 20]> g ({dtype}[3, 4] x) => ({dtype}[3, 4] y) {{
        a = Transpose <perm = [1, 0]> (x)
        y = Transpose <perm = [1, 0]> (a)
    }}""")
    rules = load_rules(write(tmp_path, CONDITIONS))
    (found,) = saturate(importer.load(model).graph, rules, Limits(seconds=10, e_nodes=2000, iterations=5)).statistics
    assert found.unions == unions
    assert [refusal.reason for refusal in found.refusals] == ([] if unions else ["p must be of bool, not float32"])


def test_pieces_come_in_the_order_of_the_text() -> None:
    a, b, c = (syntax.Name(1, name) for name in "abc")
    both = syntax.Element(1, a, b)
    assert list(pieces((both, (c, 7)))) == [both, a, b, c]
