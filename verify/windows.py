"""Propose convolutions and pools: attributes and operands around a wanted result or known operands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from verify.shapes import Shape

Operands = Sequence[Shape | None]
Values = dict[str, Any]


def _split(shape: Shape, layout: str) -> tuple[int, int, Shape]:
    """Return batch, channels and space."""
    return (shape[0], shape[1], shape[2:]) if layout == "NCHW" else (shape[0], shape[-1], shape[1:-1])


def _join(batch: int, channels: int, space: Sequence[int], layout: str) -> Shape:
    return (batch, channels, *space) if layout == "NCHW" else (batch, *space, channels)


def _plain(random: Random, choices: Sequence[int], n: int) -> Shape:
    return tuple(random.choice(choices) for _ in range(n)) if random.random() < 0.4 else (1,) * n


def _window(random: Random, n: int, kernel: Shape | None) -> Values:
    """Return kernel, strides, dilations, pads and layout for n spatial axes: often plain ones, with symmetric pads or not."""
    if kernel is None:
        kernel = (1,) * n if random.random() < 0.35 else tuple(random.choice((1, 2, 3, 3)) for _ in range(n))
    dilations = tuple(random.choice((1, 2)) for _ in range(n)) if random.random() < 0.25 else (1,) * n
    reach = [d * (k - 1) for d, k in zip(dilations, kernel, strict=True)]
    kind = random.random()
    if kind < 0.45:
        pads: tuple[int, ...] = (0,) * (2 * n)
    elif kind < 0.7:
        pads = tuple(r // 2 for r in reach) * 2
    else:
        pads = tuple(random.randint(0, r) for r in reach * 2)
    return {"kernel_shape": kernel, "strides": _plain(random, (1, 2, 3), n), "dilations": dilations, "pads": pads,
            "layout": "NCHW" if random.random() < 0.7 else "NHWC"}


def _input_space(random: Random, output: Sequence[int], a: Mapping[str, Any], kernel: Sequence[int]) -> Shape:
    n = len(output)
    return tuple(
        (output[i] - 1) * a["strides"][i] + a["dilations"][i] * (kernel[i] - 1) + 1 - a["pads"][i] - a["pads"][n + i]
        + random.randrange(a["strides"][i])
        for i in range(n)
    )


def _group(random: Random, channels: int | None, outputs: int | None) -> int:
    options = [g for g in (1, 1, 1, 2, 3, 4, channels or 1) if (channels or g) % g == 0 and (outputs or g) % g == 0]
    return random.choice(options)


def _data_space(random: Random, n: int, kernel: Sequence[int], a: Mapping[str, Any]) -> Shape:
    if random.random() < 0.15:
        return tuple(kernel)
    return tuple(random.choice((3, 4, 5, 6)) + a["dilations"][i] * (kernel[i] - 1) for i in range(n))


def _begin(result: Shape | None, operands: Operands, fixed: Values | None, random: Random) -> tuple[int, Values] | None:
    """Return the number of spatial axes and the attributes, drawn unless given; None if the shapes do not fit a convolution."""
    _, weight = operands
    n = len(next((s for s in (result, *operands) if s is not None), (1, 1, 1, 1))) - 2
    if not 1 <= n <= 3:
        return None
    return n, dict(fixed) if fixed is not None else _window(random, n, weight[2:] if weight else None)


def conv(result: Shape | None, operands: Operands, fixed: Values | None, random: Random) -> tuple[list[Shape], Values] | None:
    """Return data and weight for a convolution."""
    data, weight = operands
    begun = _begin(result, operands, fixed, random)
    if begun is None:
        return None
    n, a = begun
    drawn = a.pop("kernel_shape", None) or (tuple(random.choice((1, 2, 3, 3)) for _ in range(n)) if random.random() < 0.6 else (1,) * n)
    kernel = weight[2:] if weight else drawn
    if len(a["strides"]) != n or len(kernel) != n:
        return None
    batch, channels, space = _split(data, a["layout"]) if data else (random.choice((1, 1, 2)), None, None)
    outputs = weight[0] if weight else None
    if result is not None:
        batch, outputs, target = _split(result, a["layout"])
        space = space or _input_space(random, target, a, kernel)
    if "group" not in a:
        if weight and channels:
            a["group"] = channels // weight[1] or 1
        elif weight:
            a["group"] = _group(random, None, outputs)
        else:
            a["group"] = _group(random, channels, outputs)
    group = a["group"]
    if channels is None:
        channels = weight[1] * group if weight else group * random.choice((1, 2, 3))
    if outputs is None:
        outputs = group * random.choice((1, 2, 3))
    if channels % group or outputs % group:
        return None
    space = space or _data_space(random, n, kernel, a)
    return [data or _join(batch, channels, space, a["layout"]), weight or (outputs, channels // group, *kernel)], a


def conv_transpose(result: Shape | None, operands: Operands, fixed: Values | None, random: Random) -> tuple[list[Shape], Values] | None:
    """Return data and weight for a transposed convolution."""
    data, weight = operands
    begun = _begin(result, operands, fixed, random)
    if begun is None:
        return None
    n, a = begun
    drawn = a.pop("kernel_shape", None) or tuple(random.choice((1, 2, 3)) for _ in range(n))
    kernel = weight[2:] if weight else drawn
    a.setdefault("output_padding", (0,) * n if random.random() < 0.6 else tuple(random.randrange(s) for s in a["strides"]))
    batch, channels, space = _split(data, a["layout"]) if data else (random.choice((1, 1, 2)), weight[0] if weight else None, None)
    if len(kernel) != n or len(a["strides"]) != n:
        return None
    outputs: int | None = None
    if result is not None:
        batch, outputs, target = _split(result, a["layout"])
        reach = [a["dilations"][i] * (kernel[i] - 1) + 1 + a["output_padding"][i] - a["pads"][i] - a["pads"][n + i] for i in range(n)]
        space = space or tuple((target[i] - reach[i]) // a["strides"][i] + 1 for i in range(n))
    if "group" not in a:
        a["group"] = _group(random, channels, None if weight else outputs)
    channels = channels or a["group"] * random.choice((1, 2, 3))
    if outputs is None:
        outputs = a["group"] * random.choice((1, 2, 3))
    if outputs % a["group"]:
        return None
    space = space or tuple(random.choice((1, 2, 3, 4)) for _ in range(n))
    return [data or _join(batch, channels, space, a["layout"]), weight or (channels, outputs // a["group"], *kernel)], a


def pool(result: Shape | None, operands: Operands, fixed: Values | None, random: Random) -> tuple[list[Shape], Values] | None:
    """Return the operand of a pool; ``count_include_pad`` is drawn too, and dropped if the operator has no such attribute."""
    data = operands[0]
    rank = len(next((s for s in (result, data) if s is not None), (1, 1, 1, 1)))
    n = rank - 2
    if not 1 <= n <= 3:
        return None
    a: Values = dict(fixed) if fixed is not None else {**_window(random, n, None), "count_include_pad": random.choice((0, 1))}
    if len(a["strides"]) != n:
        return None
    if data is None:
        assert result is not None
        batch, channels, target = _split(result, a["layout"])
        return [_join(batch, channels, _input_space(random, target, a, a["kernel_shape"]), a["layout"])], a
    if fixed is None and random.random() < 0.2:
        a["kernel_shape"] = _split(data, a["layout"])[2]
        a["pads"], a["dilations"] = (0,) * (2 * n), (1,) * n
    return [data], a
