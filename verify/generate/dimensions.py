"""Symbolic sizes while terms are enumerated: named extents, their sums, and unification.

A size is an ordered sum of names: ``("i",)`` or, after a concatenation, ``("i", "j")``. A name that is a number stands for that
number. Enumeration types terms by unification, so that two extents are equal only if an operator requires it.
The resulting terms are typed again by the operators' own shape rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

Size: TypeAlias = tuple[str, ...]
Sizes: TypeAlias = tuple[Size, ...]
"""A tensor's shape."""


def parse_sizes(text: str) -> Sizes:
    """Read ``i k`` or ``i+j k``; ``.`` is the shape of a scalar."""
    return () if text.strip() == "." else tuple(tuple(size.split("+")) for size in text.split())


@dataclass
class Unifier:
    """A growing substitution of sizes for names; ``unify`` returns False if two sizes cannot be equal.

    Equal sums are assumed to have equal parts, in order, as when concatenations are compared. With ``loose``, nothing is
    assumed about the parts of sums, so that the result holds whenever the sizes are equal.
    """

    loose: bool = False
    bound: dict[str, Size] = field(default_factory=dict)
    count: int = 0

    def fresh(self) -> str:
        self.count += 1
        return f"#{self.count}"

    def resolve(self, size: Size) -> Size:
        """Return a size with all known values of its names substituted."""
        result: list[str] = []
        for name in size:
            result += self.resolve(self.bound[name]) if name in self.bound else [name]
        return tuple(result)

    def shape(self, shape: Sizes) -> Sizes:
        return tuple(map(self.resolve, shape))

    def instance(self, shapes: Iterable[Sizes]) -> tuple[Sizes, ...]:
        """Return shapes with fresh names, equal ones for equal names; numbers stay."""
        names: dict[str, str] = {}

        def renamed(name: str) -> str:
            if name.isdigit():
                return name
            if name not in names:
                names[name] = self.fresh()
            return names[name]

        return tuple(tuple(tuple(map(renamed, size)) for size in shape) for shape in shapes)

    def unify(self, first: Size, second: Size) -> bool:
        left, right = self.resolve(first), self.resolve(second)
        if left == right:
            return True
        for name, size in ((left, right), (right, left)):
            if len(name) == 1 and not name[0].isdigit() and name[0] not in size:
                self.bound[name[0]] = size
                return True
        if self.loose and len(left) + len(right) > 2:
            return True
        if len(left) != len(right) or len(left) == 1:
            return False
        return all(self.unify((a,), (b,)) for a, b in zip(left, right, strict=True))

    def unify_shapes(self, left: Sizes, right: Sizes) -> bool:
        return len(left) == len(right) and all(map(self.unify, left, right))


def match(patterns: Sizes, shape: Sizes, bound: dict[str, Size]) -> bool:
    """Bind the names of a pattern to the sizes of a shape (one-way matching); sums match sums of at least as many extents."""
    if len(patterns) != len(shape):
        return False
    for pattern, size in zip(patterns, shape, strict=True):
        if len(size) < len(pattern):
            return False
        for position, name in enumerate(pattern):
            part = size[position:] if position == len(pattern) - 1 else size[position : position + 1]
            if (name,) != part if name.isdigit() else sorted(bound.setdefault(name, part)) != sorted(part):
                return False
    return True


def instantiate(patterns: Sizes, bound: Mapping[str, Size]) -> Sizes:
    """Return a pattern with its names replaced by their sizes."""
    return tuple(tuple(part for name in size for part in bound.get(name, (name,))) for size in patterns)


def canonical(shapes: Iterable[Sizes]) -> tuple[Sizes, ...]:
    """Return shapes with their names numbered by first appearance."""
    names: dict[str, str] = {}
    return tuple(
        tuple(tuple(n if n.isdigit() else names.setdefault(n, f"d{len(names)}") for n in size) for size in shape) for shape in shapes
    )
