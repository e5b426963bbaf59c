"""Compare the generated rules with TASO's published list: which of its sound rules follow from them, and which of them it lacks.

    python -m bench.generated taso.json --ops matmul,add,mul,relu,concat --depth 3

The list is JSON (``rules[].equations[].lhs_tree``), as decoded from TASO's ``graph_subst.pb``: ``[matmul, a, b]``, ``[ewadd, a, b]``,
``[ewmul, a, b]``, ``[relu, x]``, ``[concat, axis, a, b]``, ``[split_0 | split_1, axis, x]``, ``[conv2d, stride_h, stride_w, pad,
activation, x, w]``. Convolutions are read as TASO generated them: 3x3, stride 1, same padding, ungrouped.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from egraph.errors import EinsatError
from egraph.rule import Rule
from verify.generate.command import proved
from verify.generate.derivation import derivable
from verify.generate.productions import PRODUCTIONS, Production
from verify.generate.run import Settings, generate
from verify.generate.source import compile_rule, draft, title
from verify.generate.terms import Application, Equation, Term, joint_context, renamed, variables

Tree: TypeAlias = Any
_OPERATORS = {name: name for name in ("matmul", "relu", "concat")}
_OPERATORS |= {"ewadd": "add", "ewmul": "mul", "split_0": "split", "split_1": "split"}


@dataclass(frozen=True)
class Listed:
    """One rule of the list. ``holds``: it is sound for ungrouped convolutions, by the list's own tests."""

    name: str
    holds: bool
    operators: frozenset[str]
    size: int
    equations: tuple[Equation, ...]


@dataclass(frozen=True)
class Comparison:
    """Names of the list's rules by outcome, and how many of our equations do not follow from the list."""

    derived: tuple[str, ...]
    missing: tuple[str, ...]
    beyond: tuple[str, ...]
    """Sound rules that do not follow, and need other or more operators than were enumerated."""
    false_but_derived: tuple[str, ...]
    new: int
    of: int

    def __str__(self) -> str:
        within = len(self.derived) + len(self.missing)
        share = f"{100 * len(self.derived) / within:.0f} %" if within else "none to compare"
        return (
            f"of the list's rules that hold, {within} are within reach: {len(self.derived)} follow ({share}); {len(self.beyond)} are beyond"
            f" it; {len(self.false_but_derived)} of its false rules follow; {self.new} of our {self.of} equations do not follow from it"
        )


def read_list(path: Path) -> tuple[Listed, ...]:
    """Return the rules of the list; raises ``EinsatError`` if the file is no such list."""
    try:
        rules = json.loads(path.read_text(encoding="utf-8"))["rules"]
        return tuple(map(_listed, rules))
    except (OSError, ValueError, KeyError, TypeError) as error:
        fix = "give the list decoded from graph_subst.pb"
        raise EinsatError(f"{path}: not a list of substitutions: {error}", fix=fix) from error


def compare(
    listed: Sequence[Listed], equations: Sequence[Equation], rules: Sequence[Rule], operators: Sequence[str], depth: int
) -> Comparison:
    """Return which rules of the list follow from ``rules``, and how many of ``equations`` do not follow from the list."""
    shown = {rule.name: bool(rule.equations) and all(derivable([equation], rules)[0] for equation in rule.equations) for rule in listed}
    near = {rule.name: rule.operators <= set(operators) and rule.size <= depth for rule in listed}
    sound = [rule.name for rule in listed if rule.holds]
    theirs = _as_rules([equation for rule in listed if rule.holds for equation in rule.equations])
    return Comparison(
        derived=tuple(name for name in sound if shown[name]),
        missing=tuple(name for name in sound if not shown[name] and near[name]),
        beyond=tuple(name for name in sound if not shown[name] and not near[name]),
        false_but_derived=tuple(rule.name for rule in listed if not rule.holds and shown[rule.name]),
        new=sum(not derivable([equation], theirs)[0] for equation in equations),
        of=len(equations),
    )


def _as_rules(equations: Sequence[Equation]) -> tuple[Rule, ...]:
    """Return the list's equations as rules, with every guard of the types under which they were read."""
    made: dict[str, Rule] = {}
    taken: set[str] = set()
    for equation in equations:
        for left, right in ((equation.left, equation.right), (equation.right, equation.left)):
            if not isinstance(left, int) and not set(variables(right)) - set(variables(left)):
                written = draft(Equation(left, right, equation.context), title(Equation(left, right, equation.context), taken))
                if written.text((), "reassociates").partition("(x")[2] not in made:
                    taken.add(written.name)
                    made[written.text((), "reassociates").partition("(x")[2]] = compile_rule(written, written.guards, "reassociates")
    return tuple(made.values())


def _listed(rule: Mapping[str, Any]) -> Listed:
    ranks = {f"?{variable['name']}": int(variable["rank"]) for variable in rule["variables"]}
    read = [_equation(equation["lhs_tree"], equation["rhs_tree"], ranks) for equation in rule["equations"]]
    equations = tuple(equation for equation in read if equation is not None)
    trees = [tree for equation in rule["equations"] for tree in (equation["lhs_tree"], equation["rhs_tree"])]
    operators = frozenset(name for tree in trees for name in _operators(tree))
    holds = "even for ungrouped" not in rule["verdict"] and None not in read
    return Listed(rule["id"], holds, operators, max(int(rule["n_src_ops"]), int(rule["n_dst_ops"])), equations)


def _operators(tree: Tree) -> set[str]:
    if isinstance(tree, str):
        return set()
    below = {name for part in tree[1:] if isinstance(part, list) for name in _operators(part)}
    if tree[0] == "conv2d":
        return below | {"conv"} | ({"relu"} if tree[4] else set())
    return below | {_OPERATORS[tree[0]]}


def _equation(left: Tree, right: Tree, ranks: Mapping[str, int]) -> Equation | None:
    """Return an equation under its most general types; None if no types fit ungrouped convolutions."""
    names: dict[str, int] = {}
    sides = [_term(tree, ranks, names)[0] for tree in (left, right)]
    order = {old: new for new, old in enumerate(dict.fromkeys(v for side in sides for v in variables(side)))}
    first, second = (renamed(side, order) for side in sides)
    context = joint_context((first, second), len(order))
    return None if context is None else Equation(first, second, context)


def _term(tree: Tree, ranks: Mapping[str, int], names: dict[str, int]) -> tuple[Term, int]:
    """Return a tree as a term, with its rank."""
    if isinstance(tree, str):
        return names.setdefault(tree, len(names)), ranks[tree]
    head, *subtrees = tree
    operands = [_term(part, ranks, names) for part in subtrees if isinstance(part, list | str)]
    rank = operands[0][1]
    terms = tuple(term for term, _ in operands)
    if head == "conv2d":
        result = Application(PRODUCTIONS["conv"][0], terms)
        return (Application(_of_rank("relu", 4), (result,)) if subtrees[3] else result), 4
    if head.startswith("split"):
        part = next(p for p in PRODUCTIONS["split"] if p.part == (subtrees[0], int(head[-1])) and len(p.shapes[0][0]) == rank)
        return Application(part, terms), rank
    axis = subtrees[0] if head == "concat" else None
    return Application(_of_rank(_OPERATORS[head], rank, axis), terms), rank


def _of_rank(name: str, rank: int, axis: int | None = None) -> Production:
    fitting = (p for p in PRODUCTIONS[name] if len(p.shapes[0][0]) == rank and (axis is None or dict(p.values)["axis"] == axis))
    return next(fitting)


def main(arguments: Sequence[str] | None = None) -> int:
    """Generate rules and print how they compare with a list; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.generated", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("list", type=Path, metavar="FILE.json", help="TASO's list, decoded to JSON")
    parser.add_argument("--ops", required=True, metavar="OP,OP", help=f"the operators to combine: {', '.join(PRODUCTIONS)}")
    parser.add_argument("--depth", type=int, default=2, metavar="N", help="operators a side at most (default: 2)")
    options = parser.parse_args(arguments)
    operators = tuple(options.ops.split(","))
    try:
        listed = read_list(options.list)
        generated = generate(Settings(operators, options.depth), proved, lambda text: print(text, file=sys.stderr))
    except EinsatError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if generated.stop_reason == "interrupted":
        return 130
    print(compare(listed, [equation for equation, _ in generated.equations], generated.rules, operators, options.depth))
    return 0


if __name__ == "__main__":
    sys.exit(main())
