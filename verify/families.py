"""One proof for all rules that differ only in an elementwise operator.

``slice(f(x, y)) = f(slice(x), slice(y))`` is one function of the name f, and seven rules. It is proved once, for an uninterpreted f, if
its sides apart from f only move data. Both sides then apply f to the same elements, at every position, in every case. Their results are
therefore the same for every f, bit for bit, whatever f makes of zeros, infinities and NaN, and each side is defined where the other is.
Whether a rule belongs to such a family is read off its text: the name of f is used only to apply it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import product

from egraph.errors import TypeMismatch
from egraph.rewrite import syntax
from egraph.rewrite.law import Written, digest
from egraph.rewrite.library import OPERATORS
from egraph.rewrite.parts import Overlay, mentioned, pieces
from egraph.rewrite.terms import Pattern, Variable
from egraph.rewrite.values import Closure, Value
from egraph.rule import MergeRule, Rule, make_rule
from egraph.tensor.expr.bodies import Rewriter, rebuilt, walked
from egraph.tensor.expr.index import DataIndex, Index, Symbol, atoms, index
from egraph.tensor.expr.scope import Apply, Guarded, IndexNumber, Read, Scalar, Scope, Table, Tensor
from egraph.tensor.ops import OPS
from egraph.tensor.ops.scopes import read_broadcast
from verify.bindings import steps_of
from verify.cases import is_elementwise
from verify.fragments import ANY, FLOAT, AnyOperator

APPLIES = frozenset({"unary", "binary"})
"""Functions of the language that apply the operator named by their first argument."""
_RANKS = range(4)


@dataclass(frozen=True)
class Family:
    """A rule as a member of a family: its own operator, and the family's common rule for any function."""

    op: str
    rule: Rule
    key: Hashable
    """A key that is equal for rules with the same common rule."""


def family_of(rule: Rule | MergeRule) -> Family | None:
    """Return the family of a rule; None if it uses the name of its elementwise operator for more than applying it."""
    if isinstance(rule, MergeRule) or rule.ranks is not None or rule.corrected or rule.admits is not None:
        return None
    return _family(rule) if isinstance(rule.law, Written) and not is_elementwise(rule.pattern) else None


@lru_cache(maxsize=1 << 10)
def _family(rule: Rule) -> Family | None:
    """Return the family of a rule that was read from a file and moves data."""
    assert isinstance(rule.law, Written)
    values = [value for _, value in rule.law.parts()]
    names = {value for value in values if isinstance(value, str) and value in OPS}
    if len(names) != 1:
        return None
    (op,) = names
    functions = [value for value in values if isinstance(value, Closure)]
    if not _is_pointwise(op) or not all(_only_applies(function, op) for function in functions):
        return None
    closure = _naming(rule.law.closure, op, {})
    common = make_rule(closure, name=rule.name, text=rule.text, lists=rule.law.lists, rounding=rule.rounding, phase=rule.phase)
    text = digest(rule.law, blank=op), _blanked(common.pattern), rule.rounding, rule.variables, rule.attribute_variables
    typing = OPS[op].arity, OPS[op].shape, tuple(step.dtype for step in steps_of(rule.pattern))
    return Family(op, common, (text, typing))


def _naming(closure: Closure, op: str, made: dict[int, Closure]) -> Closure:
    """Return a function in which an operator's name stands for any function, also in the functions that it calls."""
    if id(closure) in made:
        return made[id(closure)]
    made[id(closure)] = closure  # for recursive calls
    names: dict[str, Value] = {}
    for each, value in _values(closure).items():
        if value == op:
            names[each] = AnyOperator(op)
        elif isinstance(value, Closure) and (other := _naming(value, op, made)) is not value:
            names[each] = other
    if names:
        made[id(closure)] = replace(closure, around=Overlay(names, closure.around))
    return made[id(closure)]


def _values(closure: Closure) -> dict[str, Value]:
    """Return the values that a function reads and does not bind itself."""
    values: dict[str, Value] = {}
    for name in mentioned(closure.syntax):
        try:
            values[name] = closure.around.find(name)
        except KeyError:
            continue
    return values


def families(rules: Iterable[Rule | MergeRule]) -> list[list[Rule | MergeRule]]:
    """Return rules in groups that are proved together, in the order of their first members."""
    groups: dict[Hashable, list[Rule | MergeRule]] = {}
    for rule in rules:
        family = family_of(rule)
        groups.setdefault(rule.name if family is None else family.key, []).append(rule)
    return list(groups.values())


def _blanked(term: Pattern | Variable) -> Hashable:
    """Return a pattern without the name of the operator that stands for any function."""
    if isinstance(term, Variable):
        return term
    return ANY if isinstance(term.op, AnyOperator) else term.op, term.attributes, tuple(map(_blanked, term.operands))


def _only_applies(function: Closure, op: str) -> bool:
    """Return whether a function uses the operator's name only to apply it."""
    if op in function.defaults.values():
        return False
    values = _values(function)
    names = {name for name, value in values.items() if value == op}
    appliers = {name for name, value in values.items() if any(value is OPERATORS[each] for each in APPLIES)}
    every = list(pieces(function.syntax))
    uses = sum(isinstance(each, syntax.Name) and each.name in names for each in every)
    calls = (each for each in every if isinstance(each, syntax.Call) and each.arguments)
    applied = sum(_is_name(each.function, appliers) and _is_name(each.arguments[0], names) for each in calls)
    return uses == applied


def _is_name(value: object, names: set[str]) -> bool:
    return isinstance(value, syntax.Name) and value.name in names


@cache
def _is_pointwise(op: str) -> bool:
    """Return whether an operator computes each element from the elements that broadcasting pairs, the same way at every rank."""
    spec = OPS[op]
    if spec.category != "elementwise" or spec.arity is None or spec.attributes or FLOAT not in spec.dtypes:
        return False
    try:
        if spec.element_type([FLOAT] * spec.arity, {}) != FLOAT:
            return False
    except TypeMismatch:
        return False
    sizes = [Symbol(f"n{axis}") for axis in _RANKS]
    for ranks in product(_RANKS, repeat=spec.arity):
        operands = [Tensor(str(n), tuple(map(index, sizes[len(sizes) - rank :])), FLOAT) for n, rank in enumerate(ranks)]
        whole = spec.meaning(operands, {})
        places = tuple(map(index, whole.traversal))
        if whole.summation or len(places) != max(ranks):
            return False
        elements = {read_broadcast(operand, places): Read(Tensor(operand.name, (), FLOAT), ()) for operand in operands}
        if _Elements(elements).scalar(whole.body) != scalar_of(op):
            return False
    return True


@cache
def scalar_of(op: str) -> Scalar:
    """Return the scalar function of an elementwise operator; its arguments are read as tensors without axes, named by position."""
    spec = OPS[op]
    assert spec.arity is not None
    return spec.meaning([Tensor(str(n), (), FLOAT) for n in range(spec.arity)], {}).body


@dataclass
class _Elements(Rewriter):
    """Replaces reads by other scalars."""

    elements: dict[Read, Read]

    def scalar(self, body: Scalar) -> Scalar:
        return self.elements.get(body, body) if isinstance(body, Read) else rebuilt(body, self.scalar)


def only_moves(side: Scope) -> bool:
    """Return whether a side computes only the uninterpreted function."""
    seen: set[int] = set()
    waiting = [side]
    while waiting:
        scope = waiting.pop()
        if id(scope) in seen:
            continue
        seen.add(id(scope))
        for part in walked(scope.body):
            if scope.summation or (isinstance(part, Apply) and part.function != ANY) or any(map(_reads_data, _positions(part))):
                return False
            if isinstance(part, Read) and isinstance(part.source, Scope):
                waiting.append(part.source)
    return True


def _positions(part: Scalar) -> Iterator[Index]:
    """Yield the indices in a scalar itself."""
    match part:
        case Read(_, indices) | Table(_, _, indices):
            yield from indices
        case Guarded(conditions):
            yield from (side for condition in conditions for side in (condition.left, condition.right))
        case IndexNumber(value):
            yield value


def _reads_data(position: Index) -> bool:
    return any(isinstance(atom, DataIndex) for atom in atoms(position))


def applying(side: Scope, op: str) -> Scope:
    """Return a side with an operator in place of the uninterpreted function."""
    return _Applying(scalar_of(op)).scope(side)


@dataclass
class _Applying(Rewriter):
    body: Scalar

    def scalar(self, body: Scalar) -> Scalar:
        match body:
            case Apply(function, arguments) if function == ANY:
                return _at(self.body, tuple(map(self.scalar, arguments)))
            case Read(Scope() as source, indices):
                return Read(self.scope(source), indices)
        return rebuilt(body, self.scalar)


def _at(body: Scalar, arguments: tuple[Scalar, ...]) -> Scalar:
    """Return a scalar function applied to arguments."""
    if isinstance(body, Read):
        assert isinstance(body.source, Tensor)
        return arguments[int(body.source.name)]
    return rebuilt(body, lambda part: _at(part, arguments))
