"""Mutate rules and ask the prover: ``python -m verify.mutation``. Nothing that is wrong may be proved.

A mutant is a rule with one change in its text: operands swapped, an operator or a constant replaced, a guard dropped, a
number off by one, an attribute left out. The prover judges it by its symbolic cases alone, without the random tests that
would refute it first; what it calls proved is then compared with the reference on many random shapes.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import multiprocessing
import platform
import resource
import signal
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import version
from itertools import zip_longest
from pathlib import Path
from random import Random
from typing import Any, Literal

import numpy as np

from egraph import rule_operators
from egraph.errors import EinsatError
from egraph.rule import MergeRule, Rule
from egraph.rule import rule as make_rule
from egraph.rule_file import load_rules
from verify.budget import Exhausted, at_most
from verify.prove import Effort, prove
from verify.random_binding import Refused
from verify.random_testing import CRASHES, compare, draws
from verify.scope import Tree, outside

SWAPPED_FUNCTIONS = {
    "maximum": "minimum", "minimum": "maximum", "relu": "absolute", "sigmoid": "tanh", "tanh": "sigmoid", "exp": "erf", "sqrt": "exp",
    "reduce_sum": "reduce_mean", "reduce_mean": "reduce_sum", "reduce_max": "reduce_sum", "max_pool": "average_pool",
    "softmax": "log_softmax",
}  # fmt: skip
SWAPPED_NAMES = {
    "Add": "Sub", "Sub": "Add", "Mul": "Add", "Div": "Mul", "Max": "Min", "Min": "Max", "Relu": "Abs", "ReduceSum": "ReduceMax",
    "ReduceMax": "ReduceMin", "ReduceMin": "ReduceMax", "ReduceMean": "ReduceSum", "NCHW": "NHWC", "constant": "edge", "Exp": "Tanh",
}  # fmt: skip
SWAPPED_OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
}  # fmt: skip


UNITS = 20_000
"""Work (``verify.budget``) after which the proof of a mutant is given up: about a second, and the same everywhere."""
SECONDS = 60.0
"""Processor time after which a proof that does other work ends."""
FEW = 8
"""Random instances on which a mutant that is not proved is compared: how many of them are false is told."""
CHUNK = 50
"""Mutants that one process judges: what proofs remember is forgotten with it."""
MEMORY = 6 << 30
"""Address space of such a process in bytes."""
ORDERED = ("require", "range", "zip", "enumerate", "isinstance", "require_number", "require_attribute")
"""Functions whose arguments are no operands."""


@dataclass(frozen=True)
class Mutant:
    """A changed rule, and what was changed."""

    rule: Rule | MergeRule
    change: str
    line: str

    @property
    def told(self) -> str:
        return f"{self.rule.name}: {self.change} in {' '.join(self.line.split())}"


@dataclass(frozen=True)
class Judged:
    """What became of a mutant; ``difference``: where the reference refutes it, looked for thoroughly where it is proved."""

    told: str
    fate: Literal["rejected", "slow", "proved"]
    compared: int = 0
    difference: str = ""


@dataclass(frozen=True)
class Tally:
    """What became of the mutants. ``slow``: given up. ``wrong``: proved, and refuted by the reference; there must be none.

    ``false``: refuted by the reference on a few random instances, whatever the prover says.
    """

    rules: int
    mutated: int
    mutants: int
    stillborn: int
    false: int
    rejected: int
    slow: int
    proved: int
    compared: int
    wrong: tuple[str, ...]
    proved_names: tuple[str, ...]
    by_change: dict[str, int]


class TooSlow(Exception):
    """A proof that takes too long: the mutant is not proved."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise ``TooSlow`` when the block takes more processor time."""

    def stop(_: int, __: object) -> None:
        raise TooSlow

    signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, signal.SIG_IGN)  # the default ends the process, should the timer fire just now


def mutants(rule: Rule | MergeRule) -> Iterator[Mutant | None]:
    """Yield every mutant of a rule in a fixed order; None for a change after which it is no rule."""
    function = rule.function
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError, IndentationError):
        return
    definition = tree.body[0]
    if not isinstance(definition, ast.FunctionDef) or definition.name != function.__code__.co_name:
        return
    definition.decorator_list = []
    for position in range(len(list(_changes(definition)))):
        copy = ast.parse(ast.unparse(tree))
        changed = copy.body[0]
        assert isinstance(changed, ast.FunctionDef)
        name, node, apply = list(_changes(changed))[position]
        before = ast.unparse(node)
        apply()
        yield _built(rule, changed, f"{rule.name}~{position}", name, before)


def _built(rule: Rule | MergeRule, definition: ast.FunctionDef, name: str, change: str, line: str) -> Mutant | None:
    try:
        function = _compiled(rule.function, definition)
        if isinstance(rule, MergeRule):
            return Mutant(replace(rule, name=name, function=function), change, line)
        return Mutant(replace(make_rule(rounding=rule.rounding, phase=rule.phase)(function), name=name), change, line)
    except (EinsatError, TypeError, ValueError, AttributeError, AssertionError, IndexError, StopIteration, NameError, ZeroDivisionError):
        return None


def _compiled(original: Callable[..., Any], definition: ast.FunctionDef) -> Callable[..., Any]:
    """Return the changed function with the original's globals and closure."""
    closure = inspect.getclosurevars(original).nonlocals
    module = ast.parse(f"def _outer({', '.join(closure)}):\n    return {definition.name}")
    outer = module.body[0]
    assert isinstance(outer, ast.FunctionDef)
    outer.body.insert(0, definition)
    ast.fix_missing_locations(module)
    space: dict[str, Any] = {**vars(rule_operators), **original.__globals__}
    exec(compile(module, f"<mutant of {original.__name__}>", "exec", flags=0, dont_inherit=True), space)
    function: Callable[..., Any] = space["_outer"](**closure)
    function.__annotations__, function.__doc__, function.__name__ = dict(original.__annotations__), original.__doc__, original.__name__
    return function


def _changes(definition: ast.FunctionDef) -> Iterator[tuple[str, ast.AST, Callable[[], None]]]:
    """Yield what can be changed in a function: a name for the change, where, and how to do it."""
    for holder in ast.walk(definition):
        for block in ("body", "orelse"):
            statements = getattr(holder, block, None)
            if isinstance(statements, list):
                for statement in statements:
                    if isinstance(statement, ast.Expr) and _called(statement.value) in ("require", "require_number", "require_attribute"):
                        yield "guard dropped", statement, partial(_drop, statements, statement)
    for node in ast.walk(definition):
        yield from _change_of(node)


def _change_of(node: ast.AST) -> Iterator[tuple[str, ast.AST, Callable[[], None]]]:
    match node:
        case ast.BinOp(op=operator):
            if type(operator) in SWAPPED_OPERATORS:
                yield "operator replaced", node, lambda: setattr(node, "op", SWAPPED_OPERATORS[type(operator)]())
            if not isinstance(operator, ast.Add | ast.Mult):
                yield "operands swapped", node, lambda: _swap(node)
        case ast.Compare(ops=[operator]) if type(operator) in SWAPPED_OPERATORS and not isinstance(operator, ast.Eq):
            yield "comparison replaced", node, lambda: setattr(node, "ops", [SWAPPED_OPERATORS[type(operator)]()])
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=keywords):
            if name in SWAPPED_FUNCTIONS:
                yield "function replaced", node, lambda: setattr(node.func, "id", SWAPPED_FUNCTIONS[name])
            if len(arguments) > 1 and name not in ORDERED:
                yield "arguments swapped", node, lambda: arguments.insert(0, arguments.pop(1))
            if len(keywords) > 1:
                yield "attributes swapped", node, lambda: _exchange(keywords)
        case ast.Call(func=ast.Attribute(attr="but"), keywords=keywords) if keywords:
            yield "attribute left as it was", node, lambda: keywords.__delitem__(-1)
        case ast.Call(func=ast.Attribute(attr="reshape" | "transpose"), args=arguments) if len(arguments) > 1:
            yield "arguments swapped", node, lambda: arguments.insert(0, arguments.pop(1))
        case ast.Tuple(elts=elements) if len(elements) > 1 and isinstance(node.ctx, ast.Load):
            yield "entries swapped", node, lambda: elements.insert(0, elements.pop(1))
        case ast.Constant(value=bool() | None):
            return
        case ast.Constant(value=int(number)):
            yield "number off by one", node, lambda: setattr(node, "value", number + 1)
            yield "number off by one", node, lambda: setattr(node, "value", number - 1)
        case ast.Constant(value=float(number)):
            yield "constant replaced", node, lambda: setattr(node, "value", number + 1.0)
        case ast.Constant(value=str(text)) if text in SWAPPED_NAMES:
            yield "name replaced", node, lambda: setattr(node, "value", SWAPPED_NAMES[text])


def _called(value: ast.expr) -> str:
    return value.func.id if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) else ""


def _drop(statements: list[ast.stmt], statement: ast.stmt) -> None:
    statements[statements.index(statement)] = ast.Pass()


def _swap(node: ast.BinOp) -> None:
    node.left, node.right = node.right, node.left


def _exchange(keywords: list[ast.keyword]) -> None:
    keywords[0].value, keywords[1].value = keywords[1].value, keywords[0].value


def run(rules: Sequence[Rule | MergeRule], count: int, seed: int, cases: int, say: Callable[[str], None] = lambda _: None) -> Tally:
    """Judge ``count`` mutants of the rules, drawn at random, and compare what is proved with the reference."""
    random = Random(seed)
    born = [list(mutants(rule)) for rule in rules]
    stillborn = sum(mutant is None for each in born for mutant in each)
    alive = [[mutant for mutant in each if mutant is not None] for each in born]
    for each in alive:
        random.shuffle(each)
    turns = [mutant for turn in zip_longest(*alive) for mutant in random.sample(turn, len(turn)) if mutant is not None]
    drawn = turns[:count]  # one of every rule, then a second, and so on
    found: list[Judged] = []
    for start in range(0, len(drawn), CHUNK):
        found += _apart(drawn[start : start + CHUNK], seed, cases)
        proved = [each for each in found if each.fate == "proved"]
        say(f"{len(found)} of {len(drawn)}: {len(proved)} proved, {sum(bool(each.difference) for each in proved)} of them wrong")
    fates = Counter(each.fate for each in found)
    wrong = tuple(f"{each.told}\n{each.difference}" for each in found if each.fate == "proved" and each.difference)
    names = tuple(each.told for each in found if each.fate == "proved")
    changes = Counter(mutant.change for mutant in drawn)
    by_change = dict(sorted(changes.items()))
    compared = sum(each.compared for each in found if each.fate == "proved")
    mutated, false = len({mutant.rule.name.rpartition("~")[0] for mutant in drawn}), sum(bool(each.difference) for each in found)
    told = fates["rejected"], fates["slow"], len(names), compared, wrong, names, by_change
    return Tally(len(rules), mutated, len(drawn), stillborn, false, *told)


def _apart(chunk: Sequence[Mutant], seed: int, cases: int) -> list[Judged]:
    """Judge mutants in a process of their own, whose memory ends with it; one that dies takes its mutants with it, unproved."""
    receiver, sender = multiprocessing.get_context("fork").Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=lambda: sender.send([_judged(each, seed, cases) for each in chunk]))
    process.start()
    sender.close()
    try:
        return list(receiver.recv())
    except EOFError:
        if len(chunk) == 1:
            return [Judged(chunk[0].told, "slow")]
        return [judged for each in chunk for judged in _apart([each], seed, cases)]
    finally:
        process.join()


def _judged(mutant: Mutant, seed: int, cases: int) -> Judged:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    try:
        with limited(SECONDS), at_most(UNITS):
            proof = prove(mutant.rule, Effort(tests=0, open_cases=1, applications=0))
    except (TooSlow, Exhausted, MemoryError):
        return _not_proved(mutant, "slow", seed)
    if proof.verdict != "proved" or proof.covers is None:
        return _not_proved(mutant, "rejected", seed)
    done, difference = _compared(mutant.rule, proof.covers["tree"], seed, cases)
    return Judged(mutant.told, "proved", done, difference)


def _not_proved(mutant: Mutant, fate: Literal["rejected", "slow"], seed: int) -> Judged:
    """Return the fate of a mutant with what a few random instances say of it."""
    try:
        with limited(SECONDS):
            return Judged(mutant.told, fate, *_compared(mutant.rule, True, seed, FEW))
    except (TooSlow, MemoryError, *CRASHES, AttributeError, TypeError, KeyError, AssertionError):
        return Judged(mutant.told, fate)


def _compared(rule: Rule | MergeRule, tree: Tree, seed: int, cases: int) -> tuple[int, str]:
    """Compare the sides of a rule on random instances that its proof covers; return how many, and the first difference."""
    done = 0
    for instance in draws(rule, seed, 60 * cases):
        if done == cases:
            break
        if outside(tree, rule, instance.bindings):
            continue
        try:
            with np.errstate(all="ignore"):
                _, difference = compare(instance, done, "signed" if done % 2 else "positive", bits=False)
        except (Refused, EinsatError):
            continue
        done += 1
        if difference:
            return done, str(difference)
    return done, ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what became of the mutants; return 1 when one that is wrong was proved."""
    parser = argparse.ArgumentParser(prog="python -m verify.mutation", description=str(__doc__).split(":")[0] + ".")
    parser.add_argument("rules", type=Path, nargs="?", help="a Python file that ends in RULES = (my_rule, ...); the shipped rules without")
    parser.add_argument("--mutants", type=int, default=1000, help="mutants to judge, drawn at random (default: 1000)")
    parser.add_argument("--cases", type=int, default=64, help="random instances on which a proved one is compared (default: 64)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random draws (default: 0)")
    parser.add_argument("--results", type=Path, metavar="FOLDER", help="write mutation.json and mutation.md there")
    options = parser.parse_args(arguments)
    start = time.process_time()
    try:
        rules = _shipped() if options.rules is None else load_rules(options.rules)
    except EinsatError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    tally = run(rules, options.mutants, options.seed, options.cases, lambda text: print(text, file=sys.stderr, flush=True))
    seconds = time.process_time() - start + resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    print(_table(tally, seconds))
    if options.results is not None:
        given = f"{options.rules} " if options.rules else ""
        command = f"python -m verify.mutation {given}--mutants {options.mutants} --cases {options.cases} --seed {options.seed}"
        _write(options.results, tally, seconds, command)
    return 1 if tally.wrong else 0


def _shipped() -> tuple[Rule | MergeRule, ...]:
    from egraph.rules import RULES

    return RULES


def _table(tally: Tally, seconds: float) -> str:
    lines = [
        f"{tally.mutants} mutants of {tally.mutated} rules: {tally.rejected} rejected, {tally.slow} given up, {tally.proved} proved",
        f"{tally.false} of all differ from the reference on {FEW} random instances or fewer",
        f"{len(tally.wrong)} of the proved ones differ from the reference, on {tally.compared} random instances",
        f"{seconds:.0f} s of processor time", *tally.wrong,
    ]  # fmt: skip
    return "\n".join(lines)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _write(folder: Path, tally: Tally, seconds: float, command: str) -> None:
    about = {
        "command": command, "date": time.strftime("%Y-%m-%d"), "machine": _processor(),
        "python": platform.python_version(), "z3": version("z3-solver"), "numpy": version("numpy"), "cpu_seconds": round(seconds, 1),
    }  # fmt: skip
    (folder / "mutation.json").write_text(json.dumps({**about, **asdict(tally)}, indent=1) + "\n")
    rows = "\n".join(f"| {change} | {count} |" for change, count in tally.by_change.items())
    proved = "\n".join(f"* `{told}`" for told in tally.proved_names)
    (folder / "mutation.md").write_text(
        f"# Mutated rules\n\n{_table(tally, seconds)}.\n\nBy `{command}` on {about['date']} ({about['machine']}, Python {about['python']}, "
        f"Z3 {about['z3']}, numpy {about['numpy']}).\n\n| change | mutants |\n|---|---|\n{rows}\n\n"
        f"A proved mutant says something that is true too: an equal guard, a change that means the same.\n\n{proved}\n"
    )


if __name__ == "__main__":
    sys.exit(main())
