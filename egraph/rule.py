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

A function is read from its text and evaluated by ``egraph.rewrite.evaluator``; Python never runs it. It is evaluated in two ways.
*Unbound*: the variables are names, and the left side (that of the returned equation, or the first ``yield``) is read as the pattern.
*Bound*, for every match: variables carry types (``x.shape``) and attributes carry values (``a.strides``). ``require`` may then refuse
the match with a reason. The right side is built as a kernel fragment over placeholders, typed by the operators' own shape rules. Tests
and proofs compare it with the bound left side.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Literal, TypeAlias, overload

from egraph.errors import RuleError, TypeMismatch
from egraph.rewrite.law import Law, Written, closure_of
from egraph.rewrite.refusals import Mismatch
from egraph.rewrite.terms import (
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
from egraph.rewrite.values import Closure
from egraph.tensor import Attributes as AttributeTuple
from egraph.tensor import Node, TensorType, placeholder

__all__ = [
    "Admission", "Attributes", "Binding", "Correction", "Equation", "MergeRule", "Mismatch", "Rounding", "Rule", "Steps", "Tensor",
    "Verdict", "Weight", "make_rule", "merge_rule", "operation", "require", "require_attribute", "require_number", "rule",
]  # fmt: skip

Rounding: TypeAlias = Literal["exact", "reassociates", "assumes finite"]
Verdict: TypeAlias = Literal["proved", "proved for these sizes", "tested only", "refuted", "unknown"]


@dataclass(frozen=True)
class Binding:
    """The values that a match binds: a type for every tensor variable, a tuple for every attributes variable.

    ``numbers``: the number of each constant variable whose elements are all the same (part of a match's memo key).
    """

    types: Mapping[str, TensorType]
    attributes: Mapping[str, AttributeTuple]
    numbers: Mapping[str, float] = field(default_factory=dict)


Admission: TypeAlias = Callable[[Sequence[Binding], Sequence[Node], Sequence[Node]], str]
"""Returns why a rule may not be used at a match that its guard accepts: its proof does not cover the match, or not these left and
right sides. Returns '' if the rule may be used."""


Correction: TypeAlias = Callable[[Binding, Node, Node], tuple[Node, ...]]
"""Returns programs that compute the left side by correcting a right side that differs from it at some positions. Raises ``Mismatch``
if there are none."""


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
    law: Law
    rounding: Rounding = "exact"
    phase: str = "main"
    verdict: Verdict = "tested only"
    draw: Callable[[Random], Binding] | None = None
    """The rule's own source of random bindings, if its left side requires more than its pattern expresses."""
    ranks: Mapping[str, int] | None = None
    """The ranks of the variables, if only the function can build the left side (attributes follow from sizes). Such a rule
    is proved and tested but never matched. The terms that it builds before it yields its left side must be well-typed too."""
    admits: Admission | None = None
    corrected: bool = False
    """Whether the sides may differ at some positions. A match is joined only if the left side's operators correct those positions."""
    corrects: Correction | None = None

    def apply(self, binding: Binding) -> tuple[Node, Node]:
        """Return (left, right) as fragments; placeholder i is ``variables[i]``.

        Raises ``Mismatch`` with the reason when the guard refuses or the right side is ill-typed or has another type.
        """
        arguments: dict[str, Any] = {v.name: _bound(v, i, binding) for i, v in enumerate(self.variables)}
        arguments |= {name: Attributes(name, binding.attributes[name]) for name in self.attribute_variables}
        try:
            left, right = self.law.sides(arguments)
        except TypeMismatch as error:
            raise Mismatch(f"ill-typed: {error.what}") from error
        if left.type != right.type:
            raise Mismatch(f"the sides have different types: {left.type} and {right.type}")
        if self.ranks is None:
            hold_to_pattern(self, left.node, {v.name: i for i, v in enumerate(self.variables)}, binding)
        if self.admits is not None and (reason := self.admits((binding,), (left.node,), (right.node,))):
            raise Mismatch(reason)
        return left.node, right.node

    def programs(self, binding: Binding) -> tuple[Node, tuple[Node, ...]]:
        """Return the left side and the programs that a match may join to it: the right side, or its corrections if ``corrected``."""
        left, right = self.apply(binding)
        if not self.corrected:
            return left, (right,)
        if self.corrects is None:
            raise Mismatch("it holds in part, and there is nothing here that corrects it")
        return left, self.corrects(binding, left, right)


def hold_to_pattern(rule: Rule, left: Node, numbers: Mapping[str, int], binding: Binding) -> None:
    """Raise ``RuleError`` unless the left side is what the rule's pattern matches; ``numbers``: the variables' placeholders."""

    def fits(term: Pattern | Variable, node: Node) -> bool:
        if isinstance(term, Variable):
            return node.op == "Placeholder" and node.integer("index") == numbers[term.name]
        expected = binding.attributes[term.attributes] if isinstance(term.attributes, str) else term.attributes
        return node.op == term.op and node.attributes == expected and len(node.inputs) == len(term.operands) and all(
            map(fits, term.operands, node.inputs))  # fmt: skip

    if not fits(rule.pattern, left):
        raise RuleError(
            f"rule {rule.name}: its left side is not the same where variables are bound as where it was read",
            fix="let its function depend on its arguments alone; a variable of a loop around it is the last one when it runs",
        )


_VARIABLE = re.compile(r"(?P<list>list\[)?(?P<kind>Tensor|Weight)(\[['\"]?(?P<type>\w+)['\"]?\])?(?(list)\])")
_ELEMENTS = {"bool": "bool", "int": "int64", "int64": "int64", "float": None, "float32": None}
"""Element types that ``Tensor[...]`` accepts. A plain ``Tensor`` holds numbers, or whatever the operator that reads it takes."""


def _variables(closure: Closure, lists: Mapping[str, int]) -> tuple[tuple[Variable, ...], tuple[str, ...]]:
    tensors: list[Variable] = []
    bundles: list[str] = []
    for parameter in closure.syntax.parameters:
        name, annotation = parameter.name, parameter.annotation.rsplit(".", 1)[-1]
        parsed = _VARIABLE.fullmatch(annotation)
        if annotation == "Attributes":
            bundles.append(name)
        elif parsed is None or (parsed["list"] is not None) != (name in lists) or (parsed["type"] or "float") not in _ELEMENTS:
            raise RuleError(
                f"rule {closure.name}: parameter {name} needs the annotation Tensor, Weight or Attributes",
                where=f"{closure.path}:{closure.syntax.line}", fix="conditions are Tensor[bool], indices Tensor[int64]",
            )
        else:
            names = [f"{name}{i + 1}" for i in range(lists[name])] if name in lists else [name]
            tensors += [Variable(each, parsed["kind"] == "Weight", _ELEMENTS[parsed["type"] or "float"]) for each in names]
    return tuple(tensors), tuple(bundles)


def _named(function: Callable[..., Any]) -> Closure:
    """Return the closure of a Python function, with the function's current name and docstring."""
    return replace(closure_of(function), name=function.__name__, text=function.__doc__ or "")


def make_rule(
    function: Callable[..., Any] | Closure, *, name: str = "", text: str = "", lists: Mapping[str, int] | None = None,
    rounding: Rounding | None = None, phase: str = "main", is_member: bool = False, corrected: bool = False,
) -> Rule:  # fmt: skip
    """Return the rule that a function states; ``lists``: the number of variables of each parameter that takes several."""
    closure = function if isinstance(function, Closure) else _named(function)
    law = Written(closure, dict(lists or {}), is_member)
    name, text = name or closure.name, text or closure.text
    variables, bundles = _variables(closure, law.lists)
    unbound: dict[str, Any] = {v.name: (Weight if v.constant else Tensor)(v) for v in variables}
    unbound |= {each: Attributes(each, None) for each in bundles}
    left = law.left(unbound)
    if not isinstance(left.term, Pattern):
        raise RuleError(f"rule {name}: the left side must be an operator, not a bare variable")
    if missing := sorted(unbound.keys() - left.term.names()):
        what = f"rule {name}: no match binds {', '.join(missing)}, of which the left side says nothing"
        raise RuleError(what, fix="use it on the left side, or take it out")
    if not text.strip():
        raise RuleError(f"rule {name}: a docstring that states the equation is required")
    if corrected and rounding == "exact":
        what = f"rule {name}: a corrected rule is not exact: its corrections are other kernels, which add in another order"
        raise RuleError(what, fix='say nothing, or rounding="reassociates"')
    rounding = rounding or ("reassociates" if corrected else "exact")
    return Rule(name, inspect.cleandoc(text), left.term, variables, bundles, law, rounding, phase, corrected=corrected)


@overload
def rule(function: Callable[..., Any], /) -> Rule: ...
@overload
def rule(
    *, rounding: Rounding | None = None, phase: str = "main", corrected: bool = False
) -> Callable[[Callable[..., Any]], Rule]: ...  # fmt: skip
def rule(
    function: Callable[..., Any] | None = None, /, *, rounding: Rounding | None = None, phase: str = "main", corrected: bool = False
) -> Rule | Callable[[Callable[..., Any]], Rule]:
    """Make a rule from a function; the first line of its docstring is the equation shown to users.

    ``corrected``: the sides may differ at some positions; at each match the left side's operators correct those positions.
    """

    def build(f: Callable[..., Any]) -> Rule:
        return make_rule(f, rounding=rounding, phase=phase, corrected=corrected)

    return build if function is None else build(function)


@dataclass(frozen=True)
class MergeRule:
    """n applications of one operator that share operands, computed as one wide application that is sliced apart.

    ``member`` is the pattern of one application; ``shared`` names its variables that all members have in common
    (attributes variables are shared too). ``law.several`` returns one right side per member.
    """

    name: str
    text: str
    member: Rule
    shared: tuple[str, ...]
    law: Law
    rounding: Rounding = "exact"
    verdict: Verdict = "tested only"
    admits: Admission | None = None

    def apply(self, bindings: Sequence[Binding]) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
        """Return all left and all right sides as fragments over common placeholders.

        Placeholders: the shared variables in the order of ``shared``, then each member's own variables, member by member.
        """
        unshared = [v for v in self.member.variables if v.name not in self.shared]
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
            for v in unshared:
                members[-1][v.name] = _bound(v, count, binding)
                count += 1
        try:
            lefts = [self.member.law.left({**common, **member}) for member in members]
            rights = list(self.law.several({**common, **{v.name: [m[v.name] for m in members] for v in unshared}}))
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


def merge_rule(
    *, member: Callable[..., Any], shared: tuple[str, ...], rounding: Rounding = "exact"
) -> Callable[[Callable[..., Sequence[Tensor]]], MergeRule]:
    """Make a merge rule from a function that takes the shared variables, and a list for each variable that members do not share."""

    def build(f: Callable[..., Sequence[Tensor]]) -> MergeRule:
        closure = f if isinstance(f, Closure) else _named(f)
        member_rule = make_rule(member, name=closure.name, text=closure.text, is_member=True)
        return MergeRule(closure.name, inspect.cleandoc(closure.text), member_rule, shared, Written(closure), rounding)

    return build
