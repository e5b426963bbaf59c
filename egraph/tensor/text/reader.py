"""Read words, values, types and operator terms from a text; every error names the line, the column and what was expected."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar

from egraph.errors import EinsatError, TypeMismatch
from egraph.tensor.node import LEAVES, TUPLE, Node, make, placeholder
from egraph.tensor.ops import OPS, infer
from egraph.tensor.storage import STORAGE
from egraph.tensor.types import PLAIN_DIM, Attributes, AttributeValue, Dim, TensorType

T = TypeVar("T")
OTHERS = (*LEAVES, *STORAGE, "Opaque", "OpaqueOutput")
"""Operators without a shape rule: their types are written, except that of ``Opaque``, which is always ``tuple[?]``."""
WORD = re.compile(r"[^\W\d]\w*")
NAME = re.compile(r"\w+")
INTEGER = re.compile(r"-?\d+")
_DTYPE = re.compile(r"[^\W\d][\w(),]*")
_SPACE = re.compile(r"\s*")
_STRING = re.compile(r"""b?(?:'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*")""")
_VALUE = re.compile(
    r"(?P<real>-?(?:inf\b|nan\b|\d+(?:\.\d+(?:e[+-]?\d+)?|e[+-]?\d+)))|(?P<integer>-?\d+)|(?P<open>\()|(?P<literal>True\b|False\b|"
    + _STRING.pattern + ")"
)  # fmt: skip
_FIELD = re.compile(r"([^\W\d]\w*)=")
SHOWN = 30
"""The most characters of the text that an error quotes."""


class TextError(EinsatError):
    """A text does not follow the notation, or states something impossible."""


class Reader:
    """A text and the position in it; each method reads one thing and leaves the position behind it."""

    def __init__(self, text: str, name: str = "") -> None:
        self.text, self.name, self.position = text, name, 0
        self.nodes: dict[str, Node] = {}
        """Values that can be named, with their sign: ``%3``, and ``#0`` inside one fragment."""

    def error(self, what: str, at: int | None = None) -> TextError:
        start = self.position if at is None else at
        line = self.text.count("\n", 0, start) + 1
        column = start - (self.text.rfind("\n", 0, start) + 1) + 1
        remaining = self.text[start : start + SHOWN].split("\n")[0]
        shown = remaining if remaining else "the end of the line" if start < len(self.text) else "the end of the text"
        return TextError(what, where=f"{self.name + ', ' if self.name else ''}line {line}, column {column}: {shown}")

    def expected(self, expectation: str) -> TextError:
        self.skip()
        return self.error(f"expected {expectation}")

    def start(self) -> int:
        """Return the position of the next token."""
        self.skip()
        return self.position

    def skip(self) -> None:
        if self.text[self.position : self.position + 1] <= " ":
            match = _SPACE.match(self.text, self.position)
            self.position = match.end() if match else self.position

    def at_end(self) -> bool:
        self.skip()
        return self.position == len(self.text)

    def end(self) -> None:
        if not self.at_end():
            raise self.expected("the end")

    def sees(self, token: str) -> bool:
        self.skip()
        return self.text.startswith(token, self.position)

    def accept(self, token: str) -> bool:
        is_there = self.sees(token)
        self.position += len(token) * is_there
        return is_there

    def expect(self, token: str) -> None:
        if not self.accept(token):
            raise self.expected(repr(token))

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        self.skip()
        return pattern.match(self.text, self.position)

    def take(self, pattern: re.Pattern[str], expected: str) -> str:
        match = self.match(pattern)
        if match is None:
            raise self.expected(expected)
        self.position = match.end()
        return match.group()

    def peek(self, pattern: re.Pattern[str]) -> str:
        match = self.match(pattern)
        return match.group() if match else ""

    def integer(self, what: str = "an integer") -> int:
        return int(self.take(INTEGER, what))

    def string(self) -> str:
        start = self.start()
        value = self.value() if self.peek(_STRING) else None
        if isinstance(value, str):
            return value
        raise self.error("expected a string in quotes", start)

    def data(self) -> bytes:
        start = self.start()
        value = self.value() if self.peek(_STRING) else None
        if isinstance(value, bytes):
            return value
        raise self.error("expected bytes, as b'...'", start)

    def listed(self, end: str, read: Callable[[], T]) -> list[T]:
        """Read values with commas between them, up to ``end``; a trailing comma is allowed."""
        items: list[T] = []
        while not self.accept(end):
            items.append(read())
            if not self.accept(",") and not self.sees(end):
                raise self.expected(f"',' or {end!r}")
        return items

    def value(self) -> AttributeValue:
        """Read an attribute's value: a number, ``True``, ``False``, a string, bytes or a tuple, as Python writes them."""
        match = self.match(_VALUE)
        if match is None:
            raise self.expected("a number, True, False, a string, bytes or a tuple")
        self.position = match.end()
        kind, word = match.lastgroup, match.group()
        if kind == "integer":
            return int(word)
        if kind == "open":
            return tuple(self.listed(")", self.value))
        if kind == "real":
            return math.nan if word.endswith("nan") else float(word)
        literal: str | bytes | bool = ast.literal_eval(word)
        return literal

    def real(self) -> float:
        start = self.start()
        value = self.value()
        if isinstance(value, float):
            return value
        raise self.error("expected a number with a point, inf or nan", start)

    def flag(self) -> bool:
        start = self.start()
        value = self.value()
        if isinstance(value, bool):
            return value
        raise self.error("expected True or False", start)

    def tuple_of(self, read: Callable[[], T]) -> Callable[[], tuple[T, ...]]:
        """Return a reader of a tuple whose elements ``read`` reads."""

        def elements() -> tuple[T, ...]:
            self.expect("(")
            return tuple(self.listed(")", read))

        return elements

    def fields(self, **readers: Callable[[], object]) -> dict[str, Any]:
        """Read all ``name=value`` that follow, each name at most once; ``readers``: the allowed names and how to read their values."""
        values: dict[str, Any] = {}
        while (match := self.match(_FIELD)) is not None:
            word = match[1]
            if word not in readers or word in values:
                more = [name for name in readers if name not in values]
                raise self.expected(f"one of {', '.join(more)}" if more else "the end of the line")
            self.position = match.end()
            values[word] = readers[word]()
        return values

    def type(self) -> TensorType:
        """Read ``float32[1,batch,'a size']``; ``[?]`` if the rank is not known."""
        dtype = self.take(_DTYPE, "an element type")
        self.expect("[")
        if self.accept("?"):
            self.expect("]")
            return TensorType(dtype, None)
        return TensorType(dtype, tuple(self.listed("]", self._dim)))

    def _dim(self) -> Dim:
        if self.peek(_STRING):
            return self.string()
        return self.take(PLAIN_DIM, "a size or a name") if self.peek(PLAIN_DIM) else self.integer("a size or a name")

    def attributes(self) -> Attributes:
        """Read ``{name=value,...}``, or nothing if there is none."""
        if not self.accept("{"):
            return ()

        def item() -> tuple[str, AttributeValue]:
            name = self.take(WORD, "an attribute's name")
            self.expect("=")
            return name, self.value()

        pairs = self.listed("}", item)
        if len({name for name, _ in pairs}) < len(pairs):
            raise self.error("an attribute is given twice", self.position - 1)
        return tuple(sorted(pairs, key=lambda pair: pair[0]))

    def operator(self) -> str:
        start = self.position
        op = self.take(WORD, "an operator")
        if op not in OPS and op not in OTHERS:
            near = get_close_matches(op, [*OPS, *OTHERS], 1)
            self.position = start
            raise self.expected(f"an operator; there is no {op!r}" + (f", did you mean {near[0]}?" if near else ""))
        return op

    def term(self, type: TensorType | None = None) -> Node:
        """Read a value: its name, a placeholder with its type, or an operator applied to values, as ``Relu(%0) : type``.

        The type of a core operator follows from its operands and may be omitted; ``type``: the type, if known from elsewhere.
        """
        self.skip()
        start, sign = self.position, self.text[self.position : self.position + 1]
        if sign and sign in "%$#":
            self.position += 1
            name = sign + self.take(NAME, "a name")
            following = self.text[self.position : self.position + 1]
            if following == ":" and sign != "#":
                self.position += 1
                if not name[1:].isdecimal():
                    raise self.error("expected a placeholder's number", start + 1)
                return placeholder(int(name[1:]), self.type(), constant=sign == "$")
            if following == "=" and sign == "#":
                self.position += 1
                node = self.term(type)
                if self.nodes.setdefault(name, node) is not node:
                    raise self.error(f"{name} is defined twice", start)
                return node
            if name not in self.nodes:
                raise self.error(f"there is no value {name} above", start)
            return self.nodes[name]
        op = self.operator()
        attributes = self.attributes()
        self.expect("(")
        operands = self.listed(")", self.term)
        at = self.position
        if type is None and self.accept(":"):
            type = self.type()
        return make(op, operands, attributes, self.result_type(op, [operand.type for operand in operands], attributes, type, start, at))

    def result_type(
        self, op: str, operands: Sequence[TensorType], attributes: Attributes, type: TensorType | None, start: int, at: int
    ) -> TensorType:
        """Return an operator's result type; refuse a written ``type`` that is another."""
        if op in STORAGE and len(operands) == 1 and (to := dict(attributes).get("to")):
            return TensorType(str(to), operands[0].shape)
        if op not in OPS:
            if type is None and op != "Opaque":
                self.position = at
                raise self.expected(f"the type of {op}, which is no core operator: ': float32[...]'")
            return type or TUPLE
        try:
            computed = infer(op, tuple(operands), attributes)
        except TypeMismatch as error:
            raise self.error(error.what, start) from error
        if type is not None and type != computed:
            raise self.error(f"{op} makes {computed} here, not {type}", start)
        return computed
