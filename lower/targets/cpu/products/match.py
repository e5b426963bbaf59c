"""Match products by constant matrices, with the steps that follow them, as calls of the kernel in products.c."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from egraph.tensor import ELEMENT_TYPES, PLAIN, Node, placeholders, walk
from egraph.tensor.storage import stored, stored_types
from lower.calls.call import Base, LibraryCall
from lower.calls.epilogue import spine, unsized
from lower.targets.cpu.epilogue import misplaced, product_operands, steps_of
from lower.targets.cpu.tiles import ROUNDED, SPLIT, split_is_slow
from lower.views import Reason, Window, contiguous, lying

MATMUL = "products.matmul"
OPERATORS = ("MatMul", "Conv")
PARTS: Mapping[str, int] = {ROUNDED: 1, SPLIT: 2}
"""How many bfloat16 numbers of a packed column stand for one number of the matrix, by precision; pairs of them lie in 32 bits."""
TILE_INPUTS = 32
"""The inputs of a bfloat16 column are padded to a multiple of this, as in products.c."""
PANEL = 16
"""The columns of a panel, as in products.c."""
MOST_SUMMED = 1 << 14
"""The most numbers that are summed one after the other; rounding errors of longer sums add up."""


def implementations(op: str) -> tuple[str, ...]:
    """Return the names of the implementations of an operator by itself."""
    return (MATMUL,) if op in OPERATORS else ()


def match(
    fragment: Node, implementation: str, *, bases: Mapping[int, Window] | None = None, destination: Window | None = None
) -> LibraryCall | Reason:
    """Return the call that computes ``fragment``, or why there is none; operands and result are row-major by default."""
    precision = implementation.partition("@")[2]
    if precision not in ("", *PARTS):
        return f"products are computed in float32, {ROUNDED} and {SPLIT}"
    if precision == SPLIT and (slow := split_is_slow()) is not None:
        return slow
    types, narrow, fragment = stored_types(fragment), stored(fragment).operands, stored(fragment).fragment
    if others := types - {ELEMENT_TYPES.get(precision, "")}:
        return f"products of {precision or PLAIN} read and write no {', '.join(sorted(others))}"
    strange = next((node.type.dtype for node in walk((fragment,)) if node.type.dtype != PLAIN), None)
    if refused := f"it holds {strange}" if strange is not None else unsized(fragment):
        return refused
    base: Base = lying(bases)
    matched = spine(fragment, frozenset(OPERATORS), destination or contiguous(fragment.type.sizes), base)
    if isinstance(matched, str):
        return matched
    operands, steps = product_operands(matched.anchor, base), steps_of(matched.post_operations)
    if isinstance(operands, str) or isinstance(steps, str):
        return operands if isinstance(operands, str) else str(steps)
    weights = operands[1]
    if not any(leaf.integer("index") == weights.operand and leaf.attribute("constant") for leaf in placeholders(fragment)):
        return "the matrix is no constant"
    *matrices, inputs, columns = weights.window.shape
    if inputs > MOST_SUMMED:
        return f"{inputs:,} numbers would be summed one after the other"
    arguments = (*operands, *steps[1])
    if refused := misplaced(matched.destination, arguments):
        return refused
    count = math.prod(matrices)
    depth = PARTS[precision] * -(-inputs // TILE_INPUTS) * TILE_INPUTS // 2 if precision else inputs  # of a packed column, in 32 bits
    elements = count * depth * -(-columns // PANEL) * PANEL * (2 if weights.operand in narrow else 1)
    suffix = f"_{precision}" if precision else ""
    pack: dict[str, Any] = {"operand": 1, "function": f"products_pack{suffix}", "elements": elements}
    parameters = {"function": f"products_matmul{suffix}", "pack": pack, "integers": [count, 0, *steps[0]]}
    return LibraryCall("products_matmul", parameters, arguments, matched.destination)


def operand_precisions(fragment: Node, implementation: str) -> Mapping[int, frozenset[str]] | Reason:
    """Return the precisions to which a call rounds each operand of a fragment."""
    call, precision = match(fragment, implementation), implementation.partition("@")[2]
    return call if isinstance(call, str) else call.precisions(lambda argument: (precision if argument.role else "") or PLAIN)
