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
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal, TypeAlias, cast, overload

from egraph.errors import RuleError, TypeMismatch
from egraph.ir import Attributes as AttributeTuple
from egraph.ir import Node, TensorType, placeholder
from egraph.ir import attributes as make_attributes
from egraph.ops import apply
from egraph.rule_refusals import Mismatch as Mismatch
from egraph.rule_refusals import WrongAttribute as WrongAttribute
from egraph.rule_refusals import WrongNumber as WrongNumber

Rounding: TypeAlias = Literal["exact", "reassociates", "assumes finite"]
Verdict: TypeAlias = Literal["proved", "proved for these sizes", "tested only", "refuted", "unknown"]
Steps: TypeAlias = Generator["Tensor", None, None]


def require(condition: bool, reason: str) -> None:
    """Refuse the match with ``reason`` unless ``condition`` holds."""
    if not condition:
        raise Mismatch(reason)


def differs(value: Any, wanted: Any) -> bool:
    """Return whether a number is not the wanted one, to the precision of float32."""
    if hasattr(value, "differs_from"):  # a number that is known only as a name
        return bool(value.differs_from(wanted))
    return not abs(value - wanted) <= 1e-6 * abs(wanted)


def require_number(weight: Weight, wanted: float) -> None:
    """Refuse the match unless every element of ``weight`` is ``wanted`` (to the precision of float32)."""
    if weight.number is None or differs(weight.number, wanted):
        found = "other values" if weight.number is None else str(weight.number)
        raise WrongNumber(f"{weight.name} must be {wanted} everywhere, got {found}", weight.name, wanted)


def require_attribute(bundle: Attributes, attribute: str, wanted: float) -> None:
    """Refuse the match unless an attribute is ``wanted`` (to the precision of float32)."""
    value = getattr(bundle, attribute)
    if differs(value, wanted):
        raise WrongAttribute(f"{attribute} must be {wanted}, got {value}", bundle.name, attribute, wanted)


@dataclass(frozen=True, slots=True)
class Variable:
    """A pattern variable. ``constant`` variables match only values known at compile time."""

    name: str
    constant: bool


@dataclass(frozen=True, slots=True)
class Pattern:
    """An operator over patterns; ``attributes`` is a fixed tuple or the name of an attributes variable."""

    op: str
    attributes: AttributeTuple | str
    operands: tuple[Pattern | Variable, ...]


class Attributes:
    """All attributes of one matched operator: opaque in a pattern, readable by name (``a.strides``) when bound."""

    def __init__(self, name: str, values: AttributeTuple | None) -> None:
        self.name, self.values = name, values

    def __getattr__(self, key: str) -> Any:
        if self.values is None:
            raise RuleError(f"attribute {key!r} of {self.name!r} is used on the left side of a rule; yield the left side first")
        for name, value in self.values:
            if name == key:
                return value
        raise AttributeError(key)

    def but(self, **changes: Any) -> AttributeTuple:
        """Return the attributes with some replaced: ``conv(x, w, a.but(group=1))``."""
        assert self.values is not None
        return make_attributes(**{**dict(self.values), **changes})


class Bound(ABC):
    """A bound term that is no node: a proof binds variables to terms with symbolic sizes."""

    @property
    @abstractmethod
    def type(self) -> Any:
        """Return the type, with everything that rules ask of a ``TensorType``."""

    @abstractmethod
    def applied(self, op: str, operands: Sequence[Bound], attributes: AttributeTuple) -> Bound:
        """Return an operator over terms of this kind."""


class Tensor:
    """A tensor in a rule: a pattern while unbound, a fragment node with a type while bound."""

    __hash__ = object.__hash__

    def __init__(self, term: Pattern | Variable | Node | Bound) -> None:
        self.term = term

    @property
    def node(self) -> Node:
        assert isinstance(self.term, Node)
        return self.term

    @property
    def type(self) -> TensorType:
        if not isinstance(self.term, Node | Bound):
            raise RuleError("shapes are used on the left side of a rule; yield the left side first, then look at shapes")
        return cast(TensorType, self.term.type)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.sizes

    @property
    def rank(self) -> int:
        return len(self.shape)

    def __add__(self, other: Tensor) -> Tensor:
        return operation("Add", self, other)

    def __sub__(self, other: Tensor) -> Tensor:
        return operation("Sub", self, other)

    def __mul__(self, other: Tensor) -> Tensor:
        return operation("Mul", self, other)

    def __truediv__(self, other: Tensor) -> Tensor:
        return operation("Div", self, other)

    def __neg__(self) -> Tensor:
        return operation("Neg", self)

    def __matmul__(self, other: Tensor) -> Tensor:
        return operation("MatMul", self, other)

    def reshape(self, *shape: int) -> Tensor:
        return operation("Reshape", self, shape=tuple(shape))

    def transpose(self, *perm: int) -> Tensor:
        return operation("Transpose", self, perm=tuple(perm))

    def __eq__(self, other: object) -> Equation:  # type: ignore[override]  # rules read as equations
        assert isinstance(other, Tensor)
        return Equation(self, other)


class Weight(Tensor):
    """A tensor whose value is known at compile time; ``number`` is the one value of all its elements, if there is one."""

    def __init__(self, term: Pattern | Variable | Node | Bound, name: str = "", number: float | None = None) -> None:
        super().__init__(term)
        self.name, self.number = name, number


@dataclass(frozen=True, eq=False)
class Equation:
    """left == right, for all values of the variables."""

    left: Tensor
    right: Tensor


def operation(op: str, *operands: Tensor, by: Attributes | AttributeTuple | None = None, **values: Any) -> Tensor:
    """Apply the core operator ``op``; attributes come from a variable (``by``) or as keywords, never both."""
    terms = [operand.term for operand in operands]
    given = (by.values if isinstance(by, Attributes) else by) or make_attributes(**values)
    nodes, bound = [t for t in terms if isinstance(t, Node)], [t for t in terms if isinstance(t, Bound)]
    if len(nodes) == len(terms):
        return Tensor(apply(op, *nodes, attributes=given))
    if len(bound) == len(terms):
        return Tensor(bound[0].applied(op, bound, given))
    if nodes or bound:
        raise RuleError(f"{op}: left and right side variables are mixed")
    fixed = by.name if isinstance(by, Attributes) else given
    return Tensor(Pattern(op, fixed, tuple(t for t in terms if isinstance(t, Pattern | Variable))))


@dataclass(frozen=True)
class Binding:
    """What a match gives a rule: a type for every tensor variable, a tuple for every attributes variable.

    ``numbers``: constant variables all of whose elements are one number, with that number (part of a match's memo key).
    """

    types: Mapping[str, TensorType]
    attributes: Mapping[str, AttributeTuple]
    numbers: Mapping[str, float] = field(default_factory=dict)


Admission: TypeAlias = Callable[[Sequence[Binding]], str]
"""Says why a rule may not be used at a match that its guard accepts ('' where it may): its proof does not reach there."""


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
        if self.admits is not None and (reason := self.admits((binding,))):
            raise Mismatch(reason)
        return left.node, right.node


def sides(result: object) -> tuple[Tensor, Tensor]:
    """Return the left and the right side of what a rule's function returned."""
    if isinstance(result, Equation):
        return result.left, result.right
    if inspect.isgenerator(result):
        sides = list(cast(Steps, result))
        if len(sides) == 2:
            return sides[0], sides[1]
    raise RuleError("a rule must return an Equation, or yield its left and then its right side")


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
        result = f(**unbound)
        left = result.left if isinstance(result, Equation) else next(result)
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
        if self.admits is not None and (reason := self.admits(bindings)):
            raise Mismatch(reason)
        return tuple(t.node for t in lefts), tuple(t.node for t in rights)


def sides_left(result: Equation | Steps) -> Tensor:
    """Return the left side alone; nothing after it is run."""
    return result.left if isinstance(result, Equation) else next(result)


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


