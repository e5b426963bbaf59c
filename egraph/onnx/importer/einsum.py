"""Einsum of any number of operands, with or without an ellipsis and an arrow, as products of two and sums."""

from __future__ import annotations

import math
import string
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from egraph.onnx.importer.elementwise import Handler
from egraph.onnx.importer.movement import slice_axes
from egraph.onnx.importer.reduction import reduce
from egraph.onnx.importer.state import Call, NotCore
from egraph.tensor import Node

Term = tuple[Node, str]
"""A value and the letters of its axes."""


def _einsum(call: Call) -> Node:
    """Sum over the letters that the result lacks, from the left, each as soon as no other operand has it"""
    texts, result = _letters(call)
    sizes: dict[str, int] = {}
    for number, text in enumerate(texts):
        for letter, size in zip(text, call.shape(number), strict=True):
            if sizes.setdefault(letter, size) != size:
                raise NotCore("a letter has two sizes")
    (node, text), *rest = [_without_repeats(call, (call[number], text)) for number, text in enumerate(texts)]
    for number, other in enumerate(rest):
        node, text = _product(call, (node, text), other, {*result, *(letter for _, later in rest[number + 1 :] for letter in later)}, sizes)
    node, text = _summed(call, (node, text), result)
    return call.transpose(node, [text.index(letter) for letter in result])


def _letters(call: Call) -> tuple[list[str], str]:
    """Return the letters of each operand and of the result, an ellipsis written as letters that the equation does not use."""
    equation = str(call.attribute("equation", "")).replace(" ", "")
    source, arrow, result = equation.partition("->")
    texts = source.split(",")
    if len(texts) != len(call.operands):
        raise NotCore("the equation does not fit the operands")
    if not arrow:
        once = Counter(source)
        result = "..." * ("..." in source) + "".join(sorted(letter for letter in once if letter.isalpha() and once[letter] == 1))
    free = [letter for letter in string.ascii_letters if letter not in equation]
    hidden = [len(call.shape(k)) - len(text.replace("...", "")) if "..." in text else 0 for k, text in enumerate(texts)]
    if min(hidden) < 0 or max(hidden) > len(free):
        raise NotCore("the letters do not fit the ranks")
    texts = [text.replace("...", "".join(free[max(hidden) - count : max(hidden)])) for text, count in zip(texts, hidden, strict=True)]
    result = result.replace("...", "".join(free[: max(hidden)]))
    if len(set(result)) != len(result):
        raise NotCore("a letter repeats")
    if any(len(text) != len(call.shape(k)) for k, text in enumerate(texts)) or not set(result) <= set("".join(texts)):
        raise NotCore("the letters do not fit the ranks")
    return texts, result


def _without_repeats(call: Call, term: Term) -> Term:
    """x_ii = element (n + 1) i of x with its two axes flattened into one"""
    node, text = term
    while repeated := next((letter for letter in text if text.count(letter) > 1), ""):
        first, second = [axis for axis, letter in enumerate(text) if letter == repeated][:2]
        others = [axis for axis in range(len(text)) if axis not in (first, second)]
        size, lead = node.type.sizes[first], [node.type.sizes[axis] for axis in others]
        flat = call.reshape(call.transpose(node, [*others, first, second]), (*lead, size * size))
        node = slice_axes(call, flat, {len(others): (0, size * size, size + 1)})
        text = "".join(text[axis] for axis in others) + repeated
    return node, text


def _summed(call: Call, term: Term, kept: Collection[str]) -> Term:
    """Sum a term over the letters that are not kept."""
    node, text = term
    axes = tuple(axis for axis, letter in enumerate(text) if letter not in kept)
    return (reduce(call, "ReduceSum", node, axes, keep=False), "".join(x for x in text if x in kept)) if axes else term


def _product(call: Call, left: Term, right: Term, kept: Collection[str], sizes: Mapping[str, int]) -> Term:
    """Multiply two terms and sum over common letters that are not kept: a batched matrix product, elementwise if there are none"""
    (x, a), (y, b) = _summed(call, left, {*kept, *right[1]}), _summed(call, right, {*kept, *left[1]})
    batch = [letter for letter in a if letter in b and letter in kept]
    summed = [letter for letter in a if letter in b and letter not in kept]
    rows, columns = [letter for letter in a if letter not in b], [letter for letter in b if letter not in a]
    text = "".join(batch + rows + columns)

    def arranged(node: Node, given: str, order: Sequence[str], shape: Sequence[int]) -> Node:
        return call.reshape(call.transpose(node, [given.index(letter) for letter in order]), shape)

    def extents(letters: Sequence[str]) -> list[int]:
        return [sizes[letter] for letter in letters]

    if not summed:
        first = arranged(x, a, batch + rows, [*extents(batch + rows), *[1] * len(columns)])
        second = arranged(y, b, batch + columns, [*extents(batch), *[1] * len(rows), *extents(columns)])
        return call.apply("Mul", first, second), text
    lead, inner = extents(batch), math.prod(extents(summed))
    first = arranged(x, a, batch + rows + summed, (*lead, math.prod(extents(rows)), inner))
    second = arranged(y, b, batch + summed + columns, (*lead, inner, math.prod(extents(columns))))
    return call.reshape(call.apply("MatMul", first, second), extents(text)), text


HANDLERS: Mapping[str, Handler] = {"Einsum": _einsum}
