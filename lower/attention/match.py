"""Match fragments of the form g(softmax(f(q k^T))) v: windows over their operands with common batch axes, and the steps of f and g."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from egraph.tensor import Node, make, walk
from lower.axes import Axes, below_views, through
from lower.calls.call import Argument
from lower.calls.epilogue import holding
from lower.views import VIEWS, Reason, Window, lying

MOST_STEPS = 8
MOST_AXES = 12
CODES = {"Add": 0, "Mul": 1, "Sub": 2, "Div": 4}
SUBTRACT_FROM, KEEP_WHERE, REPLACE_WHERE = 3, 5, 6
"""Steps of f and g, as attention.c numbers them."""
AFTER_SOFTMAX = frozenset({"Mul", "Where"})
"""Operators that can be steps of g: they mask or weight the probabilities."""
Read: TypeAlias = tuple[int, Axes]
"""The number of a placeholder, and the axes under which it is read."""
Step: TypeAlias = tuple[int, list[Read]]
"""The code of a step, and the operands that it reads."""


@dataclass(frozen=True)
class AttentionCall:
    """A complete call; ``arguments``: q, k, v, the operands of the steps, and the number that replaces NaN."""

    arguments: tuple[Argument, ...]
    destination: Window
    is_guarded: bool
    steps_before: int
    """The number of steps of f; the steps of g follow in ``codes``."""
    codes: tuple[int, ...]
    factors: tuple[int, int]
    """How many steps of f scale the queries (the first steps) and how many scale the keys (the next ones), each by one number."""

    def spec(self) -> dict[str, object]:
        """Return the call as a plan step's recipe."""
        return {"function": "attention", "integers": [int(self.is_guarded), self.steps_before, *self.codes]}


@dataclass(frozen=True)
class _Probabilities:
    """The operands from which probabilities are computed; ``replacement`` is the number that replaces NaN in them."""

    queries: Read
    keys: Read
    factors: tuple[int, int]
    replacement: Read | None
    steps_before: int


@dataclass
class _Reader:
    """Collects the steps and their operands."""

    base: Callable[[Node], Window]
    read: list[Read]
    codes: list[int]

    def take(self, steps: Sequence[Step]) -> None:
        """Append steps, which are given in reverse order."""
        for code, read in reversed(steps):
            self.codes.append(code)
            self.read += read

    def window(self, node: Node, shape: tuple[int, ...] | None = None) -> Read | Reason:
        """Return the placeholder below a chain of views and its axes, expanded to ``shape``, or why there is none."""
        chain = []
        while node.op in VIEWS:
            chain.append(node)
            node = node.inputs[0]
        if node.op != "Placeholder":
            return f"{node.op} computes: only views of an operand can be read in place"
        axes: Axes | Reason = Axes.of(self.base(node))
        for view in reversed(chain):
            assert isinstance(axes, Axes)
            axes = through(view, axes)
            if isinstance(axes, str):
                return axes
        assert isinstance(axes, Axes)
        return node.integer("index"), axes if shape is None else axes.expand(shape)


def keeps_matrices(node: Node) -> bool:
    """Return whether a reshape changes only axes of the batch."""
    before, after = node.inputs[0].type, node.type
    return min(before.rank, after.rank) >= 2 and before.sizes[-2:] == after.sizes[-2:]


def is_number(node: Node) -> bool:
    """Return whether a node has one element."""
    return node.type.elements == 1


def number_of(node: Node) -> int | None:
    """Return which operand of a product or quotient is one number that scales the other."""
    for position in {"Mul": (1, 0), "Div": (1,)}.get(node.op, ()):
        if is_number(node.inputs[position]) and node.inputs[1 - position].type == node.type:
            return position
    return None


def match(fragment: Node, *, bases: Mapping[int, Window] | None = None, destination: Window | None = None) -> AttentionCall | Reason:
    """Return the call that computes ``fragment``, or why there is none; operands and result are row-major by default."""
    for node in walk((fragment,)):
        if node.type.dtype not in ("float32", "bool") or not node.type.is_static or 0 in node.type.sizes:
            return f"{node.type} is neither float32 nor a condition of known size"
    below = below_views(fragment, destination)
    if isinstance(below, str):
        return below
    node, result = below
    if node.op != "MatMul" or node.type.rank < 2:
        return f"{node.op} is no product of matrices"

    reader = _Reader(lying(bases), [], [])
    batch = node.type.sizes[:-2]
    values = reader.window(node.inputs[1], (*batch, *node.inputs[1].type.sizes[-2:]))
    if isinstance(values, str):
        return values
    if node.inputs[0].type.sizes[:-2] != batch or node.inputs[1].type.rank < 2:
        return "the probabilities are broadcast"
    probabilities = _probabilities(reader, node.inputs[0])
    if isinstance(probabilities, str):
        return probabilities
    queries, keys, replacement = probabilities.queries, probabilities.keys, probabilities.replacement
    if reader.codes and len(reader.codes) > MOST_STEPS:
        return f"{len(reader.codes)} steps between the products are more than {MOST_STEPS}"
    transposed = keys[0], keys[1].transpose((*range(len(keys[1].axes) - 2), len(keys[1].axes) - 1, len(keys[1].axes) - 2))
    operands = [queries, transposed, values, *reader.read, *([replacement] if replacement else [])]
    windows = _with_one_batch([result, *(axes for _, axes in operands)])
    if isinstance(windows, str):
        return windows
    written, *windows_read = windows
    if (written.shape[-1] > 1 and written.strides[-1] != 1) or (windows_read[2].shape[-1] > 1 and windows_read[2].strides[-1] != 1):
        return "columns of the values or of the result do not lie side by side"
    if len(written.shape) > MOST_AXES:
        return f"{len(written.shape)} axes are more than {MOST_AXES}"
    numbered = tuple(Argument("", index, window) for (index, _), window in zip(operands, windows_read, strict=True))
    steps_before, factors = probabilities.steps_before, probabilities.factors
    return AttentionCall(numbered, written, replacement is not None, steps_before, tuple(reader.codes), factors)


def _probabilities(reader: _Reader, node: Node) -> _Probabilities | Reason:
    """Read the steps between the softmax and the second product, the softmax, and the scores below it."""
    replacement: Read | None = None
    after: list[Step] = []
    holders = holding(node, frozenset({"Softmax"}))
    while node.op != "Softmax":
        if node.op == "Reshape" and keeps_matrices(node):
            node = node.inputs[0]
        elif replacement is None and is_guard(node):
            read = reader.window(node.inputs[1])
            if isinstance(read, str):
                return read
            replacement = read[0], Axes(read[1].offset, ())
            node = node.inputs[2]
        else:
            step = _step(reader, node, holders) if node.op in AFTER_SOFTMAX and replacement is None else ""
            if isinstance(step, str):
                return f"{node.op} between the softmax and the second product"
            after.append(step[0])
            node = step[1]
    if node.integer("axis") % node.type.rank != node.type.rank - 1 or node.type.rank < 2:
        return "the softmax is not along the keys"
    scores = _scores(reader, node.inputs[0])
    if isinstance(scores, str):
        return scores
    steps_before = len(reader.codes)
    reader.take(after)
    return _Probabilities(*scores, replacement, steps_before)


def _step(reader: _Reader, node: Node, holders: set[Node]) -> tuple[Step, Node] | Reason:
    """Return a node as a step, and its operand that leads on to the first product."""
    reason = f"{node.op} is no step between a product and the softmax"
    inside = [position for position, operand in enumerate(node.inputs) if operand in holders]
    if len(inside) != 1 or node.inputs[inside[0]].type != node.type:
        return reason
    code = _code(node.op, inside[0])
    if code is None:
        return reason
    read: list[Read] = []
    for operand in (each for number, each in enumerate(node.inputs) if number != inside[0]):
        window = reader.window(operand, node.type.sizes)
        if isinstance(window, str):
            return window
        read.append(window)
    return (code, read), node.inputs[inside[0]]


def is_guard(node: Node) -> bool:
    """Return whether a node is x with every NaN replaced by one number."""
    if node.op != "Where" or node.inputs[0].op != "IsNaN" or not is_number(node.inputs[1]):
        return False
    return node.inputs[0].inputs[0] is node.inputs[2] and node.type == node.inputs[2].type


def _scores(reader: _Reader, node: Node) -> tuple[Read, Read, tuple[int, int]] | Reason:
    """Read the steps between the first product and the softmax; return the product's operands and the number of factors of each."""
    steps: list[Step] = []
    holders = holding(node, frozenset({"MatMul"}))
    while node.op != "MatMul":
        if node.op == "Reshape" and keeps_matrices(node):
            node = node.inputs[0]
            continue
        step = _step(reader, node, holders)
        if isinstance(step, str):
            return step
        steps.append(step[0])
        node = step[1]
    factors: list[tuple[int, Read]] = []
    operands: list[Read] = []
    counts: list[int] = []
    if min(operand.type.rank for operand in node.inputs) < 2:
        return "a vector is no matrix"
    batch = node.type.sizes[:-2]
    for operand in node.inputs:
        counts.append(-len(factors))
        while True:
            view = operand
            while view.op in VIEWS:
                view = view.inputs[0]
            factor_at = number_of(view)
            if factor_at is None:
                break
            window = reader.window(view.inputs[factor_at])
            if isinstance(window, str):
                return "a factor of the queries or keys is computed"
            factors.append((CODES[view.op], (window[0], Axes(window[1].offset, ()))))
            operand = _without(operand, view, view.inputs[1 - factor_at])
        window = reader.window(operand, (*batch, *operand.type.sizes[-2:]))
        if isinstance(window, str):
            return window
        operands.append(window)
        counts[-1] += len(factors)
    for code, factor in factors:
        reader.codes.append(code)
        reader.read.append(factor)
    reader.take(steps)
    queries, keys = operands
    of_queries, of_keys = counts
    return queries, keys, (of_queries, of_keys)


def _code(op: str, position: int) -> int | None:
    if op == "Where":
        return {1: KEEP_WHERE, 2: REPLACE_WHERE}.get(position)
    return SUBTRACT_FROM if op == "Sub" and position == 1 else None if op == "Div" and position == 1 else CODES.get(op)


def _without(node: Node, factor: Node, kept: Node) -> Node:
    """Return the views above a factor, applied to the operand that it scales."""
    if node is factor:
        return kept
    return make(node.op, [_without(node.inputs[0], factor, kept)], node.attributes, node.type)


def _with_one_batch(operands: Sequence[Axes]) -> list[Window] | Reason:
    """Return windows with common batch axes: every batch is split where the batch of any operand is split."""
    cuts = {1}
    for axes in operands:
        count = 1
        for size, _ in reversed(axes.batch):
            count *= size
            cuts.add(count)
    ordered = sorted(cuts)
    if any(coarse % fine for fine, coarse in pairwise(ordered)):
        return "the axes of the batches have no common parts"
    sizes = tuple(coarse // fine for fine, coarse in pairwise(ordered))[::-1]
    windows = []
    for axes in operands:
        strides = []
        parts = list(reversed(axes.batch))
        done, position = 1, 0
        for fine in ordered[:-1]:
            while position < len(parts) and done * parts[position][0] <= fine:
                done, position = done * parts[position][0], position + 1
            strides.append(parts[position][1] * (fine // done) if position < len(parts) else 0)
        matrix = axes.matrix_strides() if len(axes.axes) >= 2 else (0, 0)
        if isinstance(matrix, str):
            return matrix
        shape = axes.shape[-2:] if len(axes.axes) >= 2 else (1, 1)
        windows.append(Window(axes.offset, (*sizes, *shape), (*reversed(strides), *matrix)))
    return windows
