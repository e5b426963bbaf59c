"""Average pools as depthwise convolutions with equal taps, and convolutions with equal taps as average pools.

The weights are a constant tensor of ones that come from padding. The proof of the program also covers these weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from fractions import Fraction
from functools import cache
from math import prod

from egraph.derive.matching.views import reshaped, sliced
from egraph.errors import TypeMismatch
from egraph.tensor import AttributeValue, Node, make, placeholder, placeholders, rewrite
from egraph.tensor.expr.bodies import reads_of
from egraph.tensor.expr.scope import Number, Read, Scope, Tensor
from egraph.tensor.ops import apply
from egraph.tensor.ops.expression import text_of
from egraph.tensor.ops.reference import fragment_expression
from egraph.tensor.ops.scopes import grid, multiply
from egraph.tensor.ops.window import Layout


def equal_taps(source: Node, channels: int, taps: Sequence[int]) -> Node:
    """w[c, 0, t] = 1 / taps,  from ones that pad an element of ``source``, because a program has no constants of its own

    The result is constant if ``source`` is constant.
    """
    rank = 2 + len(taps)
    corner = reshaped(sliced(source, [0] * source.type.rank, [1] * source.type.rank, [1] * source.type.rank), [1] * rank)
    none = (0,) * (rank - 1)
    padded = apply("Pad", corner, before=(0, *none), after=(channels, *none), mode="constant", value=1.0)
    ones = sliced(padded, (1, *none), (channels + 1, *[1] * (rank - 1)), [1] * rank)
    iterators, places = grid("i", (channels, 1, *taps))
    read = Read(Tensor("0", ones.type.sizes, ones.type.dtype), (places[0], *[places[1]] * (rank - 1)))
    return apply("Expression", ones, text=text_of(Scope.pointwise(iterators, multiply(Number(Fraction(1, prod(taps))), read))))


def as_convolution(pool: Node, source: Node) -> Node:
    """average_pool(x) = conv(x, 1 / taps) in as many groups as channels, if padding counts; otherwise equal except at the border"""
    layout = Layout(pool.string("layout"), pool.type.rank - 2)
    channels = pool.inputs[0].type.sizes[layout.channel]
    values = {name: value for name, value in pool.attributes if name not in ("kernel_shape", "count_include_pad")}
    weight = equal_taps(source, channels, pool.integers("kernel_shape"))
    return apply("Conv", pool.inputs[0], weight, attributes=tuple(sorted({**values, "group": channels}.items())))


def as_pool(conv: Node) -> Iterator[Node]:
    """conv(x, w) = conv(average_pool(x), taps w[.., 0]) of single taps, padding counted, if all taps of a filter are equal

    Yield the program if the region itself makes the weights, because nothing is known of other weights. The proof decides whether the
    taps are equal.
    """
    data, weight = conv.inputs
    filters, channels, *taps = weight.type.sizes
    if weight.op == "Placeholder" or prod(taps) == 1:
        return
    rank, values = len(taps), dict(conv.attributes)
    kept: dict[str, AttributeValue] = {name: value for name, value in values.items() if name != "group"}
    single: dict[str, AttributeValue] = {"strides": (1,) * rank, "pads": (0,) * (2 * rank), "dilations": (1,) * rank}
    first = sliced(weight, [0] * (2 + rank), [filters, channels, *[1] * rank], [1] * (2 + rank))
    iterators, places = grid("i", first.type.sizes)
    read = Read(Tensor("0", first.type.sizes, first.type.dtype), places)
    whole = apply("Expression", first, text=text_of(Scope.pointwise(iterators, multiply(Number(Fraction(prod(taps))), read))))
    with suppress(TypeMismatch):  # the window of a pool must not hold padding alone
        attributes = {**kept, "kernel_shape": tuple(taps), "count_include_pad": 1}
        pool = apply("AveragePool", data, attributes=tuple(sorted(attributes.items())))
        yield apply("Conv", pool, whole, attributes=tuple(sorted({**values, **single}.items())))


def known_as_constants(programs: Sequence[Node]) -> tuple[Node, ...]:
    """Return programs, for their costs, with constants for values that depend on no operand's contents: few elements, made once."""

    numbers: dict[Node, int] = {}
    used = 1 + max((each.integer("index") for each in placeholders(*programs)), default=-1)

    def made(old: Node, new: tuple[Node, ...]) -> Node:
        if old.op == "Expression" and len(new) == 1 and _is_known(old):
            return placeholder(used + numbers.setdefault(old, len(numbers)), old.type, constant=True)
        return make(old.op, new, old.attributes, old.type)

    built = rewrite(programs, made)
    return tuple(built[program] for program in programs)


@cache
def _is_known(node: Node) -> bool:
    return not list(reads_of(fragment_expression(node).body))
