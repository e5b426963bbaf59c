"""The building blocks of terms: core operators with the attributes and the kinds of operands that enumeration tries.

A production states on which operands an operator is tried (``i k, k j -> i j``). The operator's ``OpSpec`` defines its meaning and
its shape rules, by which every term is typed and evaluated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TypeAlias

from egraph.errors import EinsatError
from egraph.tensor import Attributes, AttributeValue, attributes
from egraph.tensor.ops import OPS
from verify.generate.dimensions import Size, Sizes, parse_sizes

Length: TypeAlias = Callable[[Size], int]


@dataclass(frozen=True)
class Production:
    """An operator on operands of certain shapes.

    ``part`` defines a ``Slice`` of an axis whose size is a sum: ``(axis, 0)`` keeps the first extent, ``(axis, 1)`` the rest.
    """

    op: str
    signature: str
    values: Attributes = ()
    part: tuple[int, int] | None = None

    @cached_property
    def shapes(self) -> tuple[tuple[Sizes, ...], Sizes]:
        """Return the shapes of the operands and of the result."""
        operands, _, result = self.signature.partition("->")
        return tuple(map(parse_sizes, operands.split(","))), parse_sizes(result)

    @property
    def arity(self) -> int:
        return len(self.shapes[0])

    @property
    def commutative(self) -> bool:
        return OPS[self.op].commutative and self.shapes[0][0] == self.shapes[0][-1]

    def attributes(self, bound: Mapping[str, Size], length: Length) -> Attributes:
        """Return the attributes, given the sizes of the signature's names and their lengths."""
        if self.part is None:
            return self.values
        axis, which = self.part
        (cut,), result = self.shapes
        first, second = (length(bound[name]) for name in cut[axis])
        starts = tuple(first if which and i == axis else 0 for i in range(len(cut)))
        ends = tuple((first + second if which else first) if i == axis else length(bound[size[0]]) for i, size in enumerate(result))
        return attributes(starts=starts, ends=ends, steps=(1,) * len(cut))


MATRIX, IMAGE = "i j", "n c h w"


def _elementwise(op: str, operands: int, **values: AttributeValue) -> tuple[Production, ...]:
    return tuple(Production(op, f"{', '.join([form] * operands)} -> {form}", attributes(**values)) for form in (MATRIX, IMAGE))


def _along(op: str, forms: Sequence[tuple[str, int]], **values: AttributeValue) -> tuple[Production, ...]:
    return tuple(Production(op, form, attributes(axis=axis, **values)) for form, axis in forms)


def _axes(op: str) -> tuple[Production, ...]:
    return tuple(Production(op, form, attributes(axes=(axis,))) for axis, form in enumerate(("i j -> 1 j", "i j -> i 1")))


_WINDOW: dict[str, AttributeValue] = {"strides": (1, 1), "dilations": (1, 1), "layout": "NCHW"}
_SAME: dict[str, AttributeValue] = {**_WINDOW, "pads": (1, 1, 1, 1)}
_VALID: dict[str, AttributeValue] = {**_WINDOW, "pads": (0, 0, 0, 0)}
_POOL = f"{IMAGE} -> {IMAGE}"
_BORDER: dict[str, AttributeValue] = {"before": (0, 0, 1, 1), "after": (0, 0, 1, 1), "mode": "constant", "value": 0.0}

PRODUCTIONS: Mapping[str, tuple[Production, ...]] = MappingProxyType({
    "matmul": (Production("MatMul", "i k, k j -> i j"),),
    **{name: _elementwise(name.capitalize(), 2) for name in ("add", "sub", "mul", "div", "max", "min")},
    **{
        name: _elementwise(name.capitalize(), 1)
        for name in ("relu", "neg", "abs", "exp", "log", "sqrt", "tanh", "sigmoid", "reciprocal", "erf", "sign")
    },
    "scale": tuple(Production("Mul", f"{form}, . -> {form}") for form in (MATRIX, IMAGE)),
    "concat": _along("Concat", (
        ("i k, j k -> i+j k", 0), ("k i, k j -> k i+j", 1), ("i c h w, j c h w -> i+j c h w", 0), ("n i h w, n j h w -> n i+j h w", 1),
    )),
    "split": tuple(
        Production("Slice", f"{form} -> {form.replace('i+j', name)}", (), (axis, which))
        for axis, form in ((0, "i+j k"), (1, "k i+j"), (0, "i+j c h w"), (1, "n i+j h w")) for which, name in enumerate("ij")
    ),
    "transpose": (Production("Transpose", "i j -> j i", attributes(perm=(1, 0))),),
    "conv": (Production("Conv", "n c h w, o c 3 3 -> n o h w", attributes(group=1, **_SAME)),),
    "conv1x1": (Production("Conv", "n c h w, o c 1 1 -> n o h w", attributes(group=1, **_VALID)),),
    "enlarge": (Production("Pad", "o c 1 1 -> o c 3 3", attributes(**_BORDER)),),
    "maxpool": (Production("MaxPool", _POOL, attributes(kernel_shape=(3, 3), **_SAME)),),
    "avgpool": (Production("AveragePool", _POOL, attributes(kernel_shape=(3, 3), count_include_pad=1, **_SAME)),),
    "sum": _axes("ReduceSum"),
    "mean": _axes("ReduceMean"),
    "reduce_max": _axes("ReduceMax"),
    "softmax": _along("Softmax", (("i j -> i j", 0), ("i j -> i j", 1))),
})  # fmt: skip
"""The names that ``--ops`` accepts."""

IMAGES = frozenset({"Conv", "MaxPool", "AveragePool", "Pad"})
"""Operators for which tensors of rank 4 are tried. Equations without them are found on lower ranks and generalised by proof."""


def productions(names: Sequence[str]) -> tuple[Production, ...]:
    """Return the productions of the named operators; raises ``EinsatError`` for an unknown name and if no name is given."""
    if not names:
        raise EinsatError("--ops: no operator is named", fix=f"choose among {', '.join(PRODUCTIONS)}")
    for name in names:
        if name not in PRODUCTIONS:
            raise EinsatError(f"--ops: there is no operator {name!r}", fix=f"choose among {', '.join(PRODUCTIONS)}")
    chosen = tuple(production for name in dict.fromkeys(names) for production in PRODUCTIONS[name])
    images = any(production.op in IMAGES for production in chosen)
    return tuple(p for p in chosen if images or not any(len(shape) == 4 for shape in p.shapes[0]))
