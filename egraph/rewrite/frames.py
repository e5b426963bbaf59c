"""Calls of functions of the rule language: the names that they bind, and their enclosing scopes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from egraph.rewrite.values import Closure, Names, Value


class Frame:
    """The names that a call binds."""

    __slots__ = ("around", "is_call", "names", "on_side")

    def __init__(
        self, around: Names, names: dict[str, Value], on_side: Callable[[Value], None] | None = None, *, is_call: bool = True
    ) -> None:
        self.around, self.names, self.on_side, self.is_call = around, names, on_side, is_call

    def find(self, name: str) -> Value:
        if name in self.names:
            return self.names[name]
        return self.around.find(name)

    def binds(self, name: str) -> bool:
        """Return whether the call that this frame belongs to binds a name."""
        frame: Names = self
        while isinstance(frame, Frame):
            if name in frame.names:
                return True
            if frame.is_call:
                return False
            frame = frame.around
        return False


def bound(function: Closure, arguments: Sequence[Value], named: Mapping[str, Value]) -> dict[str, Value]:
    """Return the parameters of a function with their values."""
    parameters = function.syntax.parameters
    if len(arguments) == len(parameters) and not named and not any(each.kind or each.named for each in parameters):
        return {each.name: value for each, value in zip(parameters, arguments, strict=True)}
    if not arguments and len(named) == len(parameters) and all(each.name in named for each in parameters):
        return dict(named)
    bindings: dict[str, Value] = dict(function.defaults)
    positional, keywords = list(arguments), dict(named)
    for each in parameters:
        if each.kind == "*":
            bindings[each.name], positional = tuple(positional), []
        elif each.kind == "**":
            bindings[each.name], keywords = keywords, {}
        elif positional and not each.named:
            if each.name in keywords:
                raise TypeError(f"{function.name} is given {each.name} twice")
            bindings[each.name] = positional.pop(0)
        elif each.name in keywords:
            bindings[each.name] = keywords.pop(each.name)
        elif each.name not in bindings:
            raise TypeError(f"{function.name} lacks {each.name}")
    if positional or keywords:
        raise TypeError(f"{function.name} is given more than it takes: {', '.join(keywords) or len(positional)}")
    return bindings


def path_of(frame: Names) -> str:
    """Return the path of the file that defines a call's function."""
    while isinstance(frame, Frame):
        frame = frame.around
    return str(getattr(frame, "path", ""))
