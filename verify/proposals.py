"""Propose operands and attributes for an operator, given its wanted result or some operands: inverse shape inference.

A proposal may be wrong, because the operator's own shape rule decides. Proposals only make well-typed draws likely.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from egraph.tensor.ops import OPS
from verify.shapes import SIZES, Shape, broadcast, narrower, permutation, regrouped, size
from verify.windows import conv, conv_transpose, pool

Operands = Sequence[Shape | None]
Values = dict[str, Any]
Proposal = tuple[list[Shape], Values] | None


def propose(op: str, result: Shape | None, operands: Operands, fixed: Mapping[str, Any] | None, random: Random) -> Proposal:
    """Return shapes for all operands and attributes, agreeing with the result, known operands and fixed attributes if possible."""
    given = dict(fixed) if fixed is not None else None
    if op in _PROPOSERS:
        return _PROPOSERS[op](result, operands, given, random)
    if OPS[op].category == "elementwise":
        return _elementwise(op, result, operands, given, random)
    return None


def _drawn_attributes(op: str, random: Random) -> Values:
    return dict(OPS[op].sample(random)[1])


def _elementwise(op: str, result: Shape | None, operands: Operands, fixed: Values | None, random: Random) -> Proposal:
    values = _drawn_attributes(op, random) if fixed is None else fixed
    bound = [s for s in operands if s is not None]
    full = result
    if full is None:
        full = broadcast(bound)
        if full is None or not bound:
            return None
        if len(operands) > 1 and random.random() < 0.15:
            full = tuple(size(random) if s == 1 else s for s in full)
    if len(operands) == 1:
        return [full], values
    shapes = [s if s is not None else (full if random.random() < 0.35 else narrower(random, full)) for s in operands]
    missing = [i for i, s in enumerate(operands) if s is None]
    if missing and broadcast(shapes) != full:
        shapes[random.choice(missing)] = full
    return shapes, values


def _reshape(result: Shape | None, operands: Operands, fixed: Values | None, random: Random) -> Proposal:
    shape = result if result is not None else fixed["shape"] if fixed else None
    operand = operands[0]
    if operand is None and shape is None:
        return None
    if shape is None:
        assert operand is not None
        shape = regrouped(random, operand)
    elif operand is None:
        operand = regrouped(random, shape)
    assert operand is not None
    return [operand], {"shape": shape}


def _transpose(result: Shape | None, operands: Operands, fixed: Values | None, random: Random) -> Proposal:
    operand = operands[0]
    rank = len(result if result is not None else operand or ())
    perm = tuple(fixed["perm"]) if fixed else permutation(random, rank)
    if operand is not None and result is not None and not fixed:
        for _ in range(20):
            if tuple(operand[p] for p in perm) == result:
                break
            perm = tuple(random.sample(range(rank), rank))
    if operand is None:
        if result is None or len(perm) != len(result):
            return None
        operand = tuple(result[perm.index(axis)] for axis in range(rank))
    return [operand], {"perm": perm}


def _concat(result: Shape | None, operands: Operands, fixed: Values | None, random: Random) -> Proposal:
    base = result if result is not None else next((s for s in operands if s is not None), None)
    if not base:
        return None
    likely = min(1, len(base) - 1)  # usually the channels
    axis = int(fixed["axis"]) if fixed else random.choice((random.randrange(len(base)), likely, likely, len(base) - 1))
    if axis >= len(base) or any(s is not None and len(s) != len(base) for s in operands):
        return None
    missing = sum(s is None for s in operands)
    if result is None:
        each = [base[axis]] * missing if random.random() < 0.5 else [size(random) for _ in range(missing)]
    else:
        remaining = result[axis] - sum(s[axis] for s in operands if s is not None)
        if remaining < missing:
            return None
        if missing and remaining % missing == 0 and random.random() < 0.5:
            each = [remaining // missing] * missing
        else:
            cuts = sorted(random.sample(range(1, remaining), missing - 1)) if missing > 1 else []
            each = [b - a for a, b in zip([0, *cuts], [*cuts, remaining], strict=True)] if missing else []
    sizes = iter(each)
    return [s if s is not None else (*base[:axis], next(sizes), *base[axis + 1 :]) for s in operands], {"axis": axis}


def _slice(result: Shape | None, operands: Operands, fixed: Values | None, random: Random) -> Proposal:
    operand = operands[0]
    if fixed is not None:
        if operand is None:
            axes = zip(fixed["starts"], fixed["ends"], fixed["steps"], strict=True)
            operand = tuple(max(s, e - t if t > 0 else 0) + 1 if t != 1 or s or random.random() < 0.2 else e for s, e, t in axes)
        return [operand], fixed
    if operand is None and result is None:
        return None
    starts, ends, steps, whole = [], [], [], []
    cut = random.randrange(len(operand or result or (1,)))
    for axis in range(len(operand if operand is not None else result or ())):
        target = result[axis] if result is not None else None
        step = random.choice((1, 1, 1, 2, 3, -1, -2)) if axis == cut or random.random() < 0.2 else 1
        untouched = axis != cut and random.random() < 0.8
        if operand is not None:
            length = operand[axis]
            count = target or (length if untouched else random.randint(1, max(1, 1 + (length - 1) // abs(step))))
            room = length - (count - 1) * abs(step) - 1
            if room < 0:
                step, room = 1, length - count
            if room < 0:
                return None
            low = random.choice((0, room, random.randint(0, room)))
        else:
            assert target is not None
            count, before, after = target, 0 if untouched else random.randint(0, 2), 0 if untouched else random.randint(0, 2)
            step = 1 if untouched else step
            low, length = before, before + (target - 1) * abs(step) + 1 + after
        start = low if step > 0 else low + (count - 1) * -step
        starts.append(start)
        steps.append(step)
        ends.append(start + count * step)
        whole.append(length)
    return [tuple(whole)], {"starts": tuple(starts), "ends": tuple(ends), "steps": tuple(steps)}


def _pad(result: Shape | None, operands: Operands, fixed: Values | None, random: Random) -> Proposal:
    operand = operands[0]
    if fixed is not None:
        if operand is None:
            if result is None or len(result) != len(fixed["before"]):
                return None
            operand = tuple(s - b - a for s, b, a in zip(result, fixed["before"], fixed["after"], strict=True))
        return ([operand], fixed) if min(operand, default=1) >= 1 else None
    base = operand if operand is not None else result
    if base is None:
        return None
    spatial = random.choice((None, range(2, len(base)), range(1, len(base) - 1)))
    before, after, inner = [], [], []
    for axis, length in enumerate(base):
        padded = (spatial is None or axis in spatial) and random.random() < 0.7
        low, high = (random.randint(0, 2), random.randint(0, 2)) if padded else (0, 0)
        if operand is None:
            low, high = (low, high) if length - low - high >= 1 else (0, 0)
            inner.append(length - low - high)
        elif result is not None:
            total = result[axis] - length
            if total < 0:
                return None
            low = random.randint(0, total)
            high = total - low
        before.append(low)
        after.append(high)
    mode = "constant" if random.random() < 0.8 else random.choice(("edge", "reflect"))
    value = random.choice((0.0, 0.0, 0.0, -3.0, 1.5, -3.5e38, -math.inf)) if mode == "constant" else 0.0
    values = {"before": tuple(before), "after": tuple(after), "mode": mode, "value": value}
    return [operand if operand is not None else tuple(inner)], values


def _expand(result: Shape | None, operands: Operands, fixed: Values | None, random: Random) -> Proposal:
    shape = tuple(fixed["shape"]) if fixed else result
    operand = operands[0]
    if shape is None:
        if operand is None:
            return None
        shape = tuple(size(random) if s == 1 else s for s in operand)
        shape = (size(random), *shape) if random.random() < 0.2 else shape
    return [operand if operand is not None else narrower(random, shape)], {"shape": shape}


def _matmul(result: Shape | None, operands: Operands, _: Values | None, random: Random) -> Proposal:
    left, right = operands
    k = left[-1] if left else right[-2] if right and len(right) > 1 else random.choice(SIZES)
    if result is not None:
        if len(result) < 2:
            return None
        batch, m, n = result[:-2], result[-2], result[-1]
    elif left is not None or right is not None:
        some = left or right or ()
        if len(some) < 2:
            return None
        batch = some[:-2] or random.choice(((), (), (2,), (3, 2)))
        m, n = left[-2] if left and len(left) > 1 else size(random), right[-1] if right else size(random)
    else:
        return None
    whole_left, whole_right = (*batch, m, k), (*batch, k, n)
    flat = random.random()
    if left is None:
        left = (m, k) if right is not None and len(right) >= len(whole_right) and flat < 0.2 else whole_left
    if right is None:
        right = (k, n) if flat < 0.6 else whole_right
    return [left, right], {}


def _reduction(op: str) -> Callable[[Shape | None, Operands, Values | None, Random], Proposal]:
    def proposer(result: Shape | None, operands: Operands, fixed: Values | None, random: Random) -> Proposal:
        operand = operands[0]
        base = operand if operand is not None else result
        if not base:
            return None
        rank = len(base)
        if fixed is not None:
            axes = tuple(fixed["axes"])
        elif operand is not None and result is not None:
            if len(operand) != len(result):
                return None
            axes = tuple(i for i in range(rank) if result[i] == 1 and (operand[i] != 1 or random.random() < 0.5))
        else:
            allowed = [i for i in range(rank) if operand is not None or base[i] == 1]
            spatial = tuple(range(2, rank))
            if random.random() < 0.55 and spatial and all(i in allowed for i in spatial):
                axes = spatial
            else:
                axes = tuple(sorted(random.sample(allowed, random.choice((1, 1, len(allowed)))))) if allowed else ()
                axes = (rank - 1,) if rank - 1 in allowed and random.random() < 0.3 else axes
        if not axes or max(axes) >= rank:
            return None
        if operand is None:
            operand = tuple(size(random) if i in axes else s for i, s in enumerate(base))
        return [operand], {"axes": axes}

    return proposer


def _along_axis(result: Shape | None, operands: Operands, fixed: Values | None, random: Random) -> Proposal:
    shape = result if result is not None else operands[0]
    return ([shape], fixed or {"axis": random.choice((random.randrange(len(shape)), len(shape) - 1))}) if shape else None


def _scaled(result: Shape | None, operands: Operands, fixed: Values | None, random: Random) -> Proposal:
    """Usually one number for all elements; else one per position along the first or last axis, or any shape that broadcasts."""
    data = operands[0] if operands[0] is not None else result
    if data is None:
        return None
    if not data or random.random() < 0.6:
        drawn: Shape = ()
    elif random.random() < 0.7:
        axis = random.choice((0, len(data) - 1))
        drawn = tuple(n if k == axis else 1 for k, n in enumerate(data))
    else:
        drawn = narrower(random, data)
    return [data, *(drawn if shape is None else shape for shape in operands[1:])], fixed or {}


def _local_response(result: Shape | None, operands: Operands, fixed: Values | None, random: Random) -> Proposal:
    proposal = _along_axis(result, operands, fixed, random)
    if proposal is None or fixed:
        return proposal
    shapes, along = proposal
    values = {"size": random.choice((1, 2, 3, 5)), "alpha": random.choice((0.25, 1.0)), "beta": 0.75, "bias": random.choice((1.0, 2.0))}
    return shapes, {**along, **values}


def _layer_normalization(result: Shape | None, operands: Operands, fixed: Values | None, random: Random) -> Proposal:
    shape = result if result is not None else operands[0]
    if not shape:
        return None
    values = fixed or {"axis": random.choice((random.randrange(len(shape)), len(shape) - 1)), "epsilon": random.choice((1e-5, 0.25))}
    return [shape, *(s or shape[values["axis"] :] for s in operands[1:])], values


def _instance_normalization(result: Shape | None, operands: Operands, fixed: Values | None, random: Random) -> Proposal:
    shape = result if result is not None else operands[0]
    if shape is None or len(shape) < 3:
        return None
    return [shape, *(s or (shape[1],) for s in operands[1:])], fixed or {"epsilon": random.choice((1e-5, 0.25))}


_PROPOSERS: Mapping[str, Callable[[Shape | None, Operands, Values | None, Random], Proposal]] = {
    "Quantize": _scaled, "Dequantize": _scaled,
    "Reshape": _reshape, "Transpose": _transpose, "Concat": _concat, "Slice": _slice, "Pad": _pad, "Expand": _expand, "MatMul": _matmul,
    **{op: _reduction(op) for op in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd")},
    "Softmax": _along_axis, "LogSoftmax": _along_axis, "LRN": _local_response, "LayerNormalization": _layer_normalization,
    "InstanceNormalization": _instance_normalization, "Conv": conv, "ConvTranspose": conv_transpose,
    "MaxPool": pool, "AveragePool": pool,
}
