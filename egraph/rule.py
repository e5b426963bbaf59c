"""The rule language: a rewrite rule is a Python function that states an equation.

    @rule
    def matmul_associative(a: Tensor, b: Tensor, c: Tensor) -> Equation:
        '''(A B) C = A (B C)'''
        return (a @ b) @ c == a @ (b @ c)

    @rule(rounding="reassociates")
    def scale_into_conv(x: Tensor, w: Weight, s: Weight, a: Attributes) -> Steps:
        '''conv(x, w) * s = conv(x, w * s),  s one number an output channel'''
        yield conv(x, w, a) * s
        require(s.shape == (1, w.shape[0], 1, 1), "s must hold one number an output channel")
        yield conv(x, w * s.reshape(w.shape[0], 1, 1, 1), a)

A function runs twice. *Unbound*, its variables are names and the left side (the returned equation's, or the first
``yield``) is read as the pattern. *Bound*, for every match, variables carry types (``x.shape``) and attributes
values (``a.strides``); then ``require`` may refuse with a reason and the right side is built, typed by the
operators' own shape rules, as a kernel fragment over placeholders. The bound left side is what tests and proofs
compare it with.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal, TypeAlias, cast, overload

from egraph.errors import RuleError, TypeMismatch
from egraph.rule_refusals import Mismatch
from egraph.rule_terms import (
    Attributes,
    Equation,
    Pattern,
    Steps,
    Tensor,
    Variable,
    Weight,
    operation,
    require,
    require_attribute,
    require_number,
)
from egraph.tensor import Attributes as AttributeTuple
from egraph.tensor import Node, TensorType, placeholder

__all__ = [
    "Admission", "Attributes", "Binding", "Equation", "MergeRule", "Mismatch", "Rounding", "Rule", "Steps", "Tensor", "Verdict", "Weight",
    "merge_rule", "operation", "require", "require_attribute", "require_number", "rule", "sides", "sides_left",
]  # fmt: skip

Rounding: TypeAlias = Literal["exact", "reassociates", "assumes finite"]
Verdict: TypeAlias = Literal["proved", "proved for these sizes", "tested only", "refuted", "unknown"]


@dataclass(frozen=True)
class Binding:
    """What a match gives a rule: a type for every tensor variable, a tuple for every attributes variable.

    ``numbers``: constant variables all of whose elements are one number, with that number (part of a match's memo key).
    """

    types: Mapping[str, TensorType]
    attributes: Mapping[str, AttributeTuple]
    numbers: Mapping[str, float] = field(default_factory=dict)


Admission: TypeAlias = Callable[[Sequence[Binding], Sequence[Node], Sequence[Node]], str]
"""Says why a rule may not be used at a match that its guard accepts ('' where it may): its proof does not reach there, or does not
speak of these left and right sides."""


def _bound(variable: Variable, index: int, binding: Binding) -> Tensor:
    node = placeholder(index, binding.types[variable.name], constant=variable.constant)
    return Weight(node, variable.name, binding.numbers.get(variable.name)) if variable.constant else Tensor(node)


@dataclass(frozen=True)
class Rule:
    """A named equation with its pattern; ``apply`` yields both sides for a binding, or raises Mismatch."""

    name: str
    text: str
    pattern: Pattern
    variables: tuple[Variable, ...]
    attribute_variables: tuple[str, ...]
    function: Callable[..., Any]
    rounding: Rounding = "exact"
    phase: str = "main"
    verdict: Verdict = "tested only"
    draw: Callable[[Random], Binding] | None = None
    """The rule's own source of random bindings, where its left side asks for more than its pattern says."""
    ranks: Mapping[str, int] | None = None
    """The ranks of the variables, where the function alone makes the left side (attributes follow from sizes): such a rule
    is proved and tested, never matched; what it builds before it yields its left side must be well-typed too."""
    admits: Admission | None = None

    def apply(self, binding: Binding) -> tuple[Node, Node]:
        """Return (left, right) as fragments; placeholder i is ``variables[i]``.

        Raises ``Mismatch`` with the reason when the guard refuses or the right side is ill-typed or has another type.
        """
        arguments: dict[str, Any] = {v.name: _bound(v, i, binding) for i, v in enumerate(self.variables)}
        arguments |= {name: Attributes(name, binding.attributes[name]) for name in self.attribute_variables}
        try:
            left, right = sides(self.function(**arguments))
        except TypeMismatch as error:
            raise Mismatch(f"ill-typed: {error.what}") from error
        if left.type != right.type:
            raise Mismatch(f"the sides have different types: {left.type} and {right.type}")
        if self.ranks is None:
            hold_to_pattern(self, left.node, {v.name: i for i, v in enumerate(self.variables)}, binding)
        if self.admits is not None and (reason := self.admits((binding,), (left.node,), (right.node,))):
            raise Mismatch(reason)
        return left.node, right.node


def hold_to_pattern(rule: Rule, left: Node, numbers: Mapping[str, int], binding: Binding) -> None:
    """Refuse a left side that is not what the rule's pattern matches; ``numbers``: the variables' placeholders."""

    def fits(term: Pattern | Variable, node: Node) -> bool:
        if isinstance(term, Variable):
            return node.op == "Placeholder" and node.integer("index") == numbers[term.name]
        wanted = binding.attributes[term.attributes] if isinstance(term.attributes, str) else term.attributes
        return node.op == term.op and node.attributes == wanted and len(node.inputs) == len(term.operands) and all(
            map(fits, term.operands, node.inputs))  # fmt: skip

    if not fits(rule.pattern, left):
        raise RuleError(
            f"rule {rule.name}: its left side is not the same where variables are bound as where it was read",
            fix="let its function depend on its arguments alone; a variable of a loop around it is the last one when it runs",
        )


SHAPE = "a rule must return an Equation, or yield its left and then its right side"


def sides(result: object) -> tuple[Tensor, Tensor]:
    """Return the left and the right side of what a rule's function returned."""
    if isinstance(result, Equation):
        return result.left, result.right
    if inspect.isgenerator(result):
        sides = list(cast(Steps, result))
        if len(sides) == 2:
            return sides[0], sides[1]
    raise RuleError(SHAPE)


def _variables(function: Callable[..., Any]) -> tuple[tuple[Variable, ...], tuple[str, ...]]:
    tensors: list[Variable] = []
    bundles: list[str] = []
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        if parameter.annotation is Attributes:
            bundles.append(name)
        elif parameter.annotation in (Tensor, Weight):
            tensors.append(Variable(name, parameter.annotation is Weight))
        else:
            raise RuleError(f"rule {function.__name__}: parameter {name} needs the annotation Tensor, Weight or Attributes")
    return tuple(tensors), tuple(bundles)


@overload
def rule(function: Callable[..., Any], /) -> Rule: ...
@overload
def rule(*, rounding: Rounding = "exact", phase: str = "main") -> Callable[[Callable[..., Any]], Rule]: ...
def rule(
    function: Callable[..., Any] | None = None, /, *, rounding: Rounding = "exact", phase: str = "main"
) -> Rule | Callable[[Callable[..., Any]], Rule]:
    """Make a rule of a function; its docstring's first line is the equation shown to people."""

    def build(f: Callable[..., Any]) -> Rule:
        variables, bundles = _variables(f)
        unbound: dict[str, Any] = {v.name: (Weight if v.constant else Tensor)(v) for v in variables}
        unbound |= {name: Attributes(name, None) for name in bundles}
        left = sides_left(f(**unbound))
        if not isinstance(left.term, Pattern):
            raise RuleError(f"rule {f.__name__}: the left side must be an operator, not a bare variable")
        text = (inspect.getdoc(f) or "").strip()
        if not text:
            raise RuleError(f"rule {f.__name__}: a docstring that states the equation is required")
        return Rule(f.__name__, text, left.term, variables, bundles, f, rounding, phase)

    return build if function is None else build(function)


@dataclass(frozen=True)
class MergeRule:
    """n applications of one operator that share operands, done as one wide application and sliced apart.

    ``member`` is the pattern of one application; ``shared`` names its variables that all members have in common
    (attributes variables are shared too). ``build(shared, members)`` returns one right side a member.
    """

    name: str
    text: str
    member: Rule
    shared: tuple[str, ...]
    function: Callable[..., Sequence[Tensor]]
    rounding: Rounding = "exact"
    verdict: Verdict = "tested only"
    admits: Admission | None = None

    def apply(self, bindings: Sequence[Binding]) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
        """Return all left and all right sides as fragments over common placeholders.

        Placeholders: the shared variables in the order of ``shared``, then each member's own variables, member by member.
        """
        own = [v for v in self.member.variables if v.name not in self.shared]
        by_name = {v.name: v for v in self.member.variables}
        count = 0
        common: dict[str, Any] = {}
        for name in self.shared:
            if name in by_name:
                v = by_name[name]
                common[name] = _bound(v, count, bindings[0])
                count += 1
        common |= {name: Attributes(name, bindings[0].attributes[name]) for name in self.member.attribute_variables}
        members: list[dict[str, Tensor]] = []
        for binding in bindings:
            members.append({})
            for v in own:
                members[-1][v.name] = _bound(v, count, binding)
                count += 1
        try:
            lefts = [sides_left(self.member.function(**common, **member)) for member in members]
            rights = list(self.function(**common, **{v.name: [m[v.name] for m in members] for v in own}))
        except TypeMismatch as error:
            raise Mismatch(f"ill-typed: {error.what}") from error
        if [t.type for t in lefts] != [t.type for t in rights]:
            raise Mismatch("the sides have different types")
        nodes = tuple(t.node for t in lefts), tuple(t.node for t in rights)
        for left, binding, member in zip(nodes[0], bindings, members, strict=True):
            numbers = {name: value.node.integer("index") for name, value in (common | member).items() if isinstance(value, Tensor)}
            hold_to_pattern(self.member, left, numbers, binding)
        if self.admits is not None and (reason := self.admits(bindings, *nodes)):
            raise Mismatch(reason)
        return nodes


def sides_left(result: Equation | Steps) -> Tensor:
    """Return the left side alone; nothing after it is run."""
    if isinstance(result, Equation):
        return result.left
    left = next(result, None) if inspect.isgenerator(result) else None
    if not isinstance(left, Tensor):
        raise RuleError(SHAPE)
    return left


def merge_rule(
    *, member: Callable[..., Any], shared: tuple[str, ...], rounding: Rounding = "exact"
) -> Callable[[Callable[..., Sequence[Tensor]]], MergeRule]:
    """Make a merge rule; the function takes the shared variables and a list for each variable of the members' own."""

    def build(f: Callable[..., Sequence[Tensor]]) -> MergeRule:
        def left(**arguments: Any) -> Steps:
            yield member(**arguments)

        left.__doc__, left.__name__ = f.__doc__, f.__name__
        left.__dict__["__signature__"] = inspect.signature(member, eval_str=True)
        return MergeRule(f.__name__, (inspect.getdoc(f) or "").strip(), rule(left), shared, f, rounding)

    return build


