"""The semantics of the rule language: one evaluator for reading patterns, matching, proving, random tests and the gate.

An interpretation (``egraph.rewrite.values``) defines integers and numbers: plain ones at a match, unknowns in a proof. So the ways in
which a rule runs cannot differ in anything else. Every step is counted, so that a function that does not terminate is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from egraph.errors import RuleError
from egraph.rewrite import syntax
from egraph.rewrite.frames import Frame, bound, path_of
from egraph.rewrite.operations import BETWEEN_LOOKS, Operations
from egraph.rewrite.values import (
    PLAIN,
    Closure,
    Interpretation,
    Native,
    Reason,
    Refusal,
    TableValue,
    Value,
    changeable,
)

Signal: TypeAlias = "tuple[Value] | Literal['break', 'continue'] | None"
"""The effect of a statement: a value that is returned, a loop that ends or continues, or nothing."""


class Evaluator(Operations):
    """Evaluates functions of the language under an interpretation of their numbers."""

    def __init__(self, numbers: Interpretation = PLAIN, *, loading: bool = False) -> None:
        super().__init__(numbers, loading=loading)

    # Functions

    def run(self, function: Closure, arguments: Mapping[str, Value], on_side: Callable[[Value], None]) -> Value:
        """Run a rule's function: pass every side that it yields to ``on_side`` and return its result."""
        return self._called(function, [], dict(arguments), on_side)

    def call(self, function: Value, arguments: Sequence[Value], named: Mapping[str, Value] | None = None) -> Value:
        """Return the value of a function."""
        self.step()
        kind = type(function)
        if kind is Closure:
            return self._called(function, arguments, named or {}, None)
        if kind is Native:
            if function.evaluating:
                return function.function(self, *arguments, **(named or {}))
            return function.function(*arguments, **(named or {}))
        if kind is Refusal:
            raise function.error
        if self.kind(function) != "function":
            raise TypeError(f"a {self.kind(function)} is called")
        return function(*arguments, **(named or {}))

    def _called(
        self, function: Closure, arguments: Sequence[Value], named: Mapping[str, Value], on_side: Callable[[Value], None] | None
    ) -> Value:
        frame = Frame(function.around, bound(function, arguments, named), on_side)
        signal = self.block(function.syntax.body, frame)
        return signal[0] if isinstance(signal, tuple) else None

    # Statements

    def block(self, statements: Sequence[syntax.Statement], frame: Frame) -> Signal:
        for each in statements:
            self._steps += 1
            if self._steps % BETWEEN_LOOKS == 0:
                self._look()
            try:
                signal = _STATEMENTS[type(each)](self, each, frame)
            except RuleError as error:
                if error.where:
                    raise
                raise RuleError(error.what, where=f"{path_of(frame)}:{each.line}", fix=error.fix) from error
            if signal is not None:
                return signal
        return None

    def _assign(self, node: syntax.Assign, frame: Frame) -> None:
        value = self.value(node.value, frame)
        for target in node.targets:
            self.bind(target, value, frame)

    def bind(self, target: syntax.Target, value: Value, frame: Frame) -> None:
        if isinstance(target, syntax.Name):  # the common case
            frame.names[target.name] = value
            return
        match target:
            case syntax.Targets():
                self._bind_each(target, list(self.each(value)), frame)
            case syntax.Element():
                container = self.value(target.value, frame)
                if self.kind(container) != "list":
                    raise TypeError(f"an element of a {self.kind(container)} is changed")
                container[self.numbers.whole(self.value(target.position, frame))] = value
            case syntax.Field():
                function = self.value(target.value, frame)
                if not (self.loading and isinstance(function, Closure) and type(value) is str):
                    raise TypeError(f"{target.name} is set where no rules are made")
                if target.name == "__name__":
                    function.name = value
                else:
                    function.text = value

    def _bind_each(self, targets: syntax.Targets, values: list[Value], frame: Frame) -> None:
        count, spread = len(targets.targets), targets.spread
        if len(values) != count if spread is None else len(values) < count - 1:
            raise ValueError(f"{len(values)} values for {count} names")
        if spread is not None:
            after = len(values) - (count - spread - 1)
            values = [*values[:spread], values[spread:after], *values[after:]]
        for target, value in zip(targets.targets, values, strict=True):
            self.bind(target, value, frame)

    def _change(self, node: syntax.Change, frame: Frame) -> None:
        before, value = self.value(node.target, frame), self.value(node.value, frame)
        if self.kind(before) == "list":
            if node.operator != "+":
                raise TypeError(f"{node.operator}= on a list")
            before.extend(self.each(value))
            return
        self.bind(node.target, self.arithmetic(node.operator, before, value), frame)

    def _if(self, node: syntax.If, frame: Frame) -> Signal:
        return self.block(node.then if self.truth(self.value(node.test, frame)) else node.otherwise, frame)

    def _for(self, node: syntax.For, frame: Frame) -> Signal:
        for value in self.each(self.value(node.values, frame)):
            self.bind(node.target, value, frame)
            signal = self.block(node.body, frame)
            if signal == "break":
                return None
            if isinstance(signal, tuple):
                return signal
        return self.block(node.otherwise, frame)

    def _while(self, node: syntax.While, frame: Frame) -> Signal:
        while self.truth(self.value(node.test, frame)):
            self.step()
            signal = self.block(node.body, frame)
            if signal == "break":
                return None
            if isinstance(signal, tuple):
                return signal
        return None

    def _return(self, node: syntax.Return, frame: Frame) -> Signal:
        return (None if node.value is None else self.value(node.value, frame),)

    def _yield(self, node: syntax.Yield, frame: Frame) -> None:
        value = self.value(node.value, frame)
        if frame.on_side is None:
            raise TypeError("a function that is no rule yields")
        frame.on_side(value)

    def _evaluate(self, node: syntax.Evaluate, frame: Frame) -> None:
        self.value(node.value, frame)

    def _assert(self, node: syntax.Assert, frame: Frame) -> None:
        if not self.truth(self.value(node.test, frame)):
            raise AssertionError("" if node.message is None else str(self.value(node.message, frame)))

    def _leave(self, node: syntax.Leave, frame: Frame) -> Signal:
        return None if node.how == "pass" else node.how

    def _define(self, node: syntax.Function, frame: Frame) -> None:
        function: Value = self._function(node, frame)
        for maker in reversed(node.makers):
            if isinstance(function, Refusal):
                break
            function = self.call(self.value(maker, frame), [function])
        frame.names[node.name] = function

    def _refused(self, node: syntax.Refused, frame: Frame) -> None:
        error = RuleError(f"{node.what}: {node.why}", where=f"{path_of(frame)}:{node.line}", fix=node.fix)
        frame.names |= {name: Refusal(error, name) for name in node.names}
        if not self.loading:
            raise error

    def _import(self, node: syntax.Import, frame: Frame) -> None:
        raise RuleError(f"import of {node.module} inside of a function", where=f"{path_of(frame)}:{node.line}", fix="import it above")

    # Expressions

    def value(self, node: syntax.Expression, frame: Frame) -> Value:
        """Return the value of an expression."""
        if isinstance(node, syntax.Name):  # the common case: no further call
            names = frame.names
            if node.name in names:
                binding = names[node.name]
                if type(binding) is not Refusal:
                    return binding
        elif isinstance(node, syntax.Literal):
            return node.value
        return _EXPRESSIONS[type(node)](self, node, frame)

    def _literal(self, node: syntax.Literal, _: Frame) -> Value:
        return node.value

    def _name(self, node: syntax.Name, frame: Frame) -> Value:
        names = frame.names
        if node.name in names:
            value = names[node.name]
        else:
            try:
                value = frame.find(node.name)
            except KeyError:
                raise NameError(f"{node.name} is not defined (line {node.line})") from None
            if type(value) not in _FIXED and not self.loading and not frame.binds(node.name) and changeable(value):
                raise RuleError(
                    f"{node.name} outlives the call and can change: what a rule does depends on its arguments alone, not on earlier calls",
                    where=f"{path_of(frame)}:{node.line}", fix="write a tuple, or make the value in the rule's function",
                )  # fmt: skip
        if type(value) is Refusal and not self.loading:
            raise value.error
        return value

    def _field(self, node: syntax.Field, frame: Frame) -> Value:
        value = self.value(node.value, frame)
        kind, name = self.kind(value), node.name
        if kind == "attributes" or (kind == "tensor" and name in _OF_TENSORS):
            return getattr(value, name)
        match kind:
            case "type" if name in ("elements", "dtype", "sizes", "shape", "rank"):
                return getattr(value, name)
            case "module" if name in value.members:
                return value.members[name]
            case "list" if name in ("append", "extend", "pop"):
                if name == "pop":
                    return Native(name, lambda *positions: value.pop(*map(self.numbers.whole, positions)))
                return Native(name, value.append if name == "append" else lambda values: value.extend(self.each(values)))
            case "tuple" | "list" | "range" if name in ("index", "count"):
                return Native(name, lambda sought: self._position(value, sought) if name == "index" else self._count(value, sought))
            case "function" if isinstance(value, Native) and value.name == "chain" and name == "from_iterable":
                return Native(name, lambda values: (element for each in self.each(values) for element in self.each(each)))
        raise AttributeError(f"a {kind} has no {name} (line {node.line})")

    def _position(self, values: Value, sought: Value) -> int:
        for position, each in enumerate(self.each(values)):
            if self.equal(each, sought):
                return position
        raise ValueError(f"{sought} is not there")

    def _count(self, values: Value, sought: Value) -> int:
        return sum(self.equal(each, sought) for each in self.each(values))

    def _element(self, node: syntax.Element, frame: Frame) -> Value:
        container, position = self.value(node.value, frame), self.value(node.position, frame)
        if type(container) is tuple and type(position) is int:  # the common case
            return container[position]
        match self.kind(container):
            case "table":
                for key, value in container.entries:
                    if self.equal(key, position):
                        return value
                raise KeyError(position)
            case "tuple" | "list" | "range":
                if self.kind(position) not in ("integer", "truth"):
                    raise TypeError(f"a {self.kind(position)} is no position")
                return container[self.numbers.whole(position)]
        raise TypeError(f"a {self.kind(container)} has no elements (line {node.line})")

    def _part(self, node: syntax.Part, frame: Frame) -> Value:
        sequence = self.value(node.value, frame)
        if self.kind(sequence) not in ("tuple", "list", "range"):
            raise TypeError(f"a {self.kind(sequence)} has no parts (line {node.line})")
        ends = [None if each is None else self.numbers.whole(self.value(each, frame)) for each in (node.first, node.last, node.step)]
        return sequence[slice(*ends)]

    def _call(self, node: syntax.Call, frame: Frame) -> Value:
        function = self.value(node.function, frame)
        if type(function) is Native and function.refuses and (stated := _condition_and_reason(node)) is not None:
            condition, reason = stated
            return self.call(function, [self._holds(condition, frame, required=True), reason])
        named = {name: self.value(each, frame) for name, each in node.named} if node.named else {}
        for each in node.keyword_tables:
            more = self.value(each, frame)
            if type(more) is not dict:
                raise TypeError(f"** takes what a function was given by name (line {node.line})")
            named |= more
        return self.call(function, self._spread(node.arguments, frame), named)

    def _spread(self, nodes: Sequence[syntax.Expression | syntax.Spread], frame: Frame) -> list[Value]:
        values: list[Value] = []
        for each in nodes:
            if isinstance(each, syntax.Spread):
                values.extend(self.each(self.value(each.value, frame)))
            else:
                values.append(self.value(each, frame))
        return values

    def _holds(self, node: syntax.Expression, frame: Frame, *, required: bool) -> bool:
        """Return the truth of an expression; an answer other than ``required`` refuses the match before anything else is evaluated.

        The interpretation is told what this requires of each part. The expression is evaluated like any other, in the same order.
        """
        match node:
            case syntax.Not(value=value):
                return not self._holds(value, frame, required=not required)
            case syntax.Every(some=some, operands=operands):
                for each in operands[:-1]:
                    held = self._holds(each, frame, required=required) if some != required else self.truth(self.value(each, frame))
                    if held == some:
                        return held
                return self._holds(operands[-1], frame, required=required)
            case syntax.Choice(test=test, then=then, otherwise=otherwise):
                return self._holds(then if self.truth(self.value(test, frame)) else otherwise, frame, required=required)
            case syntax.Compared(first=first, comparisons=((operator, other),)):
                left = self.value(first, frame)
                return self.truth(self.compare(operator, left, self.value(other, frame), required))
            case syntax.Compared(first=first, comparisons=comparisons) if required:
                left = self.value(first, frame)
                for operator, other in comparisons:
                    right = self.value(other, frame)
                    if not self.truth(self.compare(operator, left, right, required)):
                        return False
                    left = right
                return True
            case syntax.Call(
                function=function, named=(), keyword_tables=(),
                arguments=(syntax.Comprehension(kind="one by one", element=element, clauses=clauses),),
            ):  # fmt: skip
                value = self.value(function, frame)
                if type(value) is Native and value.every is required:
                    inner = Frame(frame, {}, is_call=False)
                    self.step()
                    for _ in self._bindings(clauses, inner):
                        if self._holds(element, inner, required=required) is not required:
                            return not required
                    return required
            case syntax.Call(keyword_tables=()):
                value = self.value(node.function, frame)
                if isinstance(value, Closure) and (result := _only_result(value)) is not None:
                    named = {name: self.value(each, frame) for name, each in node.named}
                    arguments = self._spread(node.arguments, frame)
                    self.step()
                    return self._holds(result, Frame(value.around, bound(value, arguments, named)), required=required)
        return self.truth(self.value(node, frame), required)

    def _negative(self, node: syntax.Negative, frame: Frame) -> Value:
        value = self.value(node.value, frame)
        match self.kind(value):
            case "tensor":
                return -value
            case "integer" | "number" | "truth":
                return self.numbers.negative(value)
        raise TypeError(f"minus a {self.kind(value)} (line {node.line})")

    def _not(self, node: syntax.Not, frame: Frame) -> bool:
        return not self.truth(self.value(node.value, frame))

    def _arithmetic(self, node: syntax.Arithmetic, frame: Frame) -> Value:
        return self.arithmetic(node.operator, self.value(node.left, frame), self.value(node.right, frame))

    def _compared(self, node: syntax.Compared, frame: Frame) -> Value:
        left = self.value(node.first, frame)
        if len(node.comparisons) == 1:  # the common case
            ((operator, other),) = node.comparisons
            return self.compare(operator, left, self.value(other, frame))
        result: Value = True
        for position, (operator, other) in enumerate(node.comparisons):
            right = self.value(other, frame)
            result = self.compare(operator, left, right)
            if position + 1 < len(node.comparisons) and not self.truth(result):
                return result
            left = right
        return result

    def _every(self, node: syntax.Every, frame: Frame) -> Value:
        result: Value = None
        for each in node.operands[:-1]:
            result = self.value(each, frame)
            if self.truth(result) == node.some:
                return result
        return self.value(node.operands[-1], frame)

    def _choice(self, node: syntax.Choice, frame: Frame) -> Value:
        return self.value(node.then if self.truth(self.value(node.test, frame)) else node.otherwise, frame)

    def _display(self, node: syntax.Display, frame: Frame) -> Value:
        values = self._spread(node.elements, frame)
        match node.kind:
            case "tuple":
                return tuple(values)
            case "list":
                return values
            case "set":
                return self.distinct(values)

    def _table(self, node: syntax.Table, frame: Frame) -> TableValue:
        return self._tabled([(self.value(key, frame), self.value(value, frame)) for key, value in node.entries])

    def _tabled(self, entries: Sequence[tuple[Value, Value]]) -> TableValue:
        distinct: list[tuple[Value, Value]] = []
        for key, value in entries:
            distinct = [(other, kept) for other, kept in distinct if not self.equal(other, key)]
            distinct.append((key, value))
        return TableValue(tuple(distinct))

    def _comprehension(self, node: syntax.Comprehension, frame: Frame) -> Value:
        inner = Frame(frame, {}, is_call=False)
        bindings = self._bindings(node.clauses, inner)
        match node.kind:
            case "one by one":
                return (self.value(node.element, inner) for _ in bindings)
            case "list":
                return [self.value(node.element, inner) for _ in bindings]
            case "set":
                return self.distinct([self.value(node.element, inner) for _ in bindings])
            case "table":
                assert node.key is not None
                return self._tabled([(self.value(node.key, inner), self.value(node.element, inner)) for _ in bindings])

    def _bindings(self, clauses: Sequence[syntax.Clause], frame: Frame) -> Iterator[None]:
        first, *further = clauses
        for value in self.each(self.value(first.values, frame)):
            self.bind(first.target, value, frame)
            for condition in first.conditions:
                if not self.truth(self.value(condition, frame)):
                    break
            else:
                if further:
                    yield from self._bindings(further, frame)
                else:
                    yield None

    def _text(self, node: syntax.Text, frame: Frame) -> Value:
        values = [part if isinstance(part, str) else format(self.value(part[0], frame), part[1]) for part in node.parts]
        return "".join(values) if self.loading else Reason("".join(values))

    def _function(self, node: syntax.Function, frame: Frame) -> Closure:
        defaults = {each.name: self.value(each.default, frame) for each in node.parameters if each.default is not None}
        if any(map(changeable, defaults.values())):
            raise RuleError(
                "a default argument that can change: what a rule does depends on its arguments alone, not on earlier calls",
                where=f"{path_of(frame)}:{node.line}", fix="use None, or a tuple",
            )  # fmt: skip
        return Closure(node, frame, path_of(frame), defaults, node.name, node.text)


def _condition_and_reason(node: syntax.Call) -> tuple[syntax.Expression, str] | None:
    """Return both parts of ``f(condition, "reason")``, None for other calls, because a computed reason might depend on the condition."""
    match node:
        case syntax.Call(arguments=(condition, syntax.Literal(value=str() as reason)), named=(), keyword_tables=()):
            return None if isinstance(condition, syntax.Spread) else (condition, reason)
    return None


def _only_result(function: Closure) -> syntax.Expression | None:
    """Return the expression that a function returns if it does nothing else, None otherwise."""
    match function.syntax.body:
        case (syntax.Return(value=value),):
            return value
    return None


_FIXED = frozenset({Closure, Native, int, float, str, bool, type(None)})
_OF_TENSORS = frozenset({"shape", "rank", "type", "number", "reshape", "transpose"})
_STATEMENTS: Mapping[type, Callable[[Evaluator, Any, Frame], Signal]] = {
    syntax.Assign: Evaluator._assign, syntax.Change: Evaluator._change, syntax.If: Evaluator._if, syntax.For: Evaluator._for,
    syntax.While: Evaluator._while, syntax.Return: Evaluator._return, syntax.Yield: Evaluator._yield,
    syntax.Evaluate: Evaluator._evaluate, syntax.Assert: Evaluator._assert, syntax.Leave: Evaluator._leave,
    syntax.Function: Evaluator._define, syntax.Refused: Evaluator._refused, syntax.Import: Evaluator._import,
}  # fmt: skip
_EXPRESSIONS: Mapping[type, Callable[[Evaluator, Any, Frame], Value]] = {
    syntax.Literal: Evaluator._literal, syntax.Name: Evaluator._name, syntax.Field: Evaluator._field, syntax.Element: Evaluator._element,
    syntax.Part: Evaluator._part, syntax.Call: Evaluator._call, syntax.Negative: Evaluator._negative, syntax.Not: Evaluator._not,
    syntax.Arithmetic: Evaluator._arithmetic, syntax.Compared: Evaluator._compared, syntax.Every: Evaluator._every,
    syntax.Choice: Evaluator._choice, syntax.Display: Evaluator._display, syntax.Table: Evaluator._table,
    syntax.Comprehension: Evaluator._comprehension, syntax.Text: Evaluator._text, syntax.Function: Evaluator._function,
}  # fmt: skip
