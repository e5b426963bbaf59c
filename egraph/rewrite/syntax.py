"""The syntax of the rule language: the parts of a rule's function, as small frozen values.

It is a subset of Python's syntax. ``egraph.rewrite.reader`` reads it, and ``egraph.rewrite.evaluator`` defines its meaning.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal as OneOf
from typing import TypeAlias

ArithmeticOperator: TypeAlias = OneOf["+", "-", "*", "/", "//", "%", "**", "@"]
Comparison: TypeAlias = OneOf["==", "!=", "<", "<=", ">", ">=", "in", "not in", "is", "is not"]


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a rule's text; ``line`` is its position, which is not part of its meaning."""

    line: int = field(compare=False, repr=False)


# Expressions


@dataclass(frozen=True, slots=True)
class Literal(Piece):
    """A number, a text, True, False or None."""

    value: bool | int | float | str | None


@dataclass(frozen=True, slots=True)
class Name(Piece):
    name: str


@dataclass(frozen=True, slots=True)
class Field(Piece):
    """value.name"""

    value: Expression
    name: str


@dataclass(frozen=True, slots=True)
class Element(Piece):
    """value[position]"""

    value: Expression
    position: Expression


@dataclass(frozen=True, slots=True)
class Part(Piece):
    """value[first:last:step]"""

    value: Expression
    first: Expression | None
    last: Expression | None
    step: Expression | None


@dataclass(frozen=True, slots=True)
class Spread(Piece):
    """*value, among arguments or elements"""

    value: Expression


@dataclass(frozen=True, slots=True)
class Call(Piece):
    """function(arguments, name=value, **rest)"""

    function: Expression
    arguments: tuple[Expression | Spread, ...]
    named: tuple[tuple[str, Expression], ...]
    keyword_tables: tuple[Expression, ...] = ()


@dataclass(frozen=True, slots=True)
class Negative(Piece):
    """-value"""

    value: Expression


@dataclass(frozen=True, slots=True)
class Not(Piece):
    """not value"""

    value: Expression


@dataclass(frozen=True, slots=True)
class Arithmetic(Piece):
    """left OP right"""

    operator: ArithmeticOperator
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class Compared(Piece):
    """first OP second OP third ..., all of them"""

    first: Expression
    comparisons: tuple[tuple[Comparison, Expression], ...]


@dataclass(frozen=True, slots=True)
class Every(Piece):
    """first and second ..., or with ``some`` first or second ...; its value is that of the operand that decides"""

    some: bool
    operands: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Choice(Piece):
    """then if test else otherwise"""

    test: Expression
    then: Expression
    otherwise: Expression


@dataclass(frozen=True, slots=True)
class Display(Piece):
    """(a, b), [a, b] or {a, b}"""

    kind: OneOf["tuple", "list", "set"]
    elements: tuple[Expression | Spread, ...]


@dataclass(frozen=True, slots=True)
class Table(Piece):
    """{key: value}"""

    entries: tuple[tuple[Expression, Expression], ...]


@dataclass(frozen=True, slots=True)
class Clause:
    """for target in values if condition"""

    target: Target
    values: Expression
    conditions: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Comprehension(Piece):
    """[element for target in values]; ``key`` for tables"""

    kind: OneOf["list", "set", "table", "one by one"]
    key: Expression | None
    element: Expression
    clauses: tuple[Clause, ...]


@dataclass(frozen=True, slots=True)
class Text(Piece):
    """f"text {value}": a reason, which decides nothing"""

    parts: tuple[str | tuple[Expression, str], ...]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a function; ``kind``: "", "*" or "**"; ``named``: whether it is keyword-only."""

    name: str
    annotation: str
    default: Expression | None
    kind: OneOf["", "*", "**"] = ""
    named: bool = False


@dataclass(frozen=True, slots=True)
class Function(Piece):
    """def name(parameters): body"""

    name: str
    parameters: tuple[Parameter, ...]
    body: tuple[Statement, ...]
    text: str = ""
    """Its docstring."""
    makers: tuple[Expression, ...] = ()
    """Its decorators, the outermost first."""


Expression: TypeAlias = (
    Literal | Name | Field | Element | Part | Call | Negative | Not | Arithmetic | Compared | Every | Choice | Display | Table
    | Comprehension | Text | Function
)  # fmt: skip


# Statements


@dataclass(frozen=True, slots=True)
class Targets:
    """first, second = values"""

    targets: tuple[Target, ...]
    spread: int | None = None
    """The position of the target that takes the remaining values as a list."""


Target: TypeAlias = Name | Element | Field | Targets


@dataclass(frozen=True, slots=True)
class Assign(Piece):
    targets: tuple[Target, ...]
    value: Expression


@dataclass(frozen=True, slots=True)
class Change(Piece):
    """target OP= value"""

    target: Name | Element
    operator: ArithmeticOperator
    value: Expression


@dataclass(frozen=True, slots=True)
class If(Piece):
    test: Expression
    then: tuple[Statement, ...]
    otherwise: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class For(Piece):
    target: Target
    values: Expression
    body: tuple[Statement, ...]
    otherwise: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class While(Piece):
    test: Expression
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Return(Piece):
    value: Expression | None


@dataclass(frozen=True, slots=True)
class Yield(Piece):
    value: Expression


@dataclass(frozen=True, slots=True)
class Evaluate(Piece):
    """An expression that is evaluated for its effect: ``require(...)``"""

    value: Expression


@dataclass(frozen=True, slots=True)
class Assert(Piece):
    test: Expression
    message: Expression | None


@dataclass(frozen=True, slots=True)
class Leave(Piece):
    """break, continue or pass"""

    how: OneOf["break", "continue", "pass"]


@dataclass(frozen=True, slots=True)
class Import(Piece):
    """from module import name as alias; ``name`` is None for ``import module as alias``"""

    module: str
    name: str | None
    alias: str


@dataclass(frozen=True, slots=True)
class Refused(Piece):
    """A statement of a file that is not part of the language; the names that it binds may not be used."""

    names: tuple[str, ...]
    what: str
    why: str
    fix: str


Statement: TypeAlias = (
    Assign | Change | If | For | While | Return | Yield | Evaluate | Assert | Leave | Import | Refused | Function
)
