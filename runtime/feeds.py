"""Random values for model inputs and kernel operands: never constant, integers within what the model accepts."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

Values: TypeAlias = Literal["normal", "uniform", "positive", "whole", "faint", "bytes"]
"""How floats are drawn: standard normal; uniform from 0 to 1, as images are; away from 0, for divisors; 1, 2 or 3, for exponents; normal
and small; or uniform from 0 to 255, as images are that the model scales itself."""
LEAST_POSITIVE = 0.25
FAINT = 1 / 32

PERIOD = 262_147
"""A prime: values that repeat with this period do not line up with any stride."""
DRAWN = "drawn.json"
"""The file of a kernel's artefact that says how to draw its weights: ``seed`` and, as ``weights``, a row a ``FeedSpec``. ``stored`` has, by
name, the weights that lie in memory in another order of axes: which weights these are, and the order."""
ELEMENTS_OF_A_SEQUENCE = 2
DEFAULT_BOUND = 2
"""Integers are drawn below this unless a larger bound is known: 0 and 1 are valid as indices, masks and flags."""


@dataclass(frozen=True)
class FeedSpec:
    """What to draw for one input. Integers are drawn from ``low`` to ``bound - 1``."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bound: int = DEFAULT_BOUND
    values: Values = "normal"
    low: int = 0

    @property
    def is_float(self) -> bool:
        return "float" in self.dtype


def random_array(
    dtype: str,
    shape: tuple[int, ...],
    generator: np.random.Generator,
    *,
    bound: int = DEFAULT_BOUND,
    values: Values = "normal",
    low: int = 0,
) -> np.ndarray:
    """Draw floats, integers from ``low`` on and below ``bound``, fair booleans, or one-letter strings."""
    if dtype == "string":
        return generator.choice(np.array(["a", "b", "c"], dtype=object), size=shape)
    if dtype == "bool":
        return generator.integers(0, 2, size=shape).astype(np.bool_)
    if dtype.startswith(("int", "uint")):
        return generator.integers(low, max(bound, low + 1), size=shape).astype(dtype)
    if dtype.startswith("complex"):
        return (generator.standard_normal(shape) + 1j * generator.standard_normal(shape)).astype(dtype)
    if dtype == "float64":
        return np.asarray(_floats(shape, generator, np.float64, values))
    floats = np.asarray(_floats(shape, generator, np.float32, values))  # a computed number of no axes is no array
    if dtype in ("float32", "float16"):
        return floats.astype(dtype, copy=False)
    if "(" in dtype:
        raise ValueError(f"no values of the type {dtype} can be drawn")
    import ml_dtypes  # bfloat16 and the 8-bit floats only

    return floats.astype(getattr(ml_dtypes, dtype))


def _floats(
    shape: tuple[int, ...], generator: np.random.Generator, dtype: type[np.float32] | type[np.float64], values: Values
) -> np.ndarray:
    match values:
        case "normal":
            return generator.standard_normal(size=shape, dtype=dtype)
        case "uniform":
            return generator.random(size=shape, dtype=dtype)
        case "positive":
            return LEAST_POSITIVE + np.abs(generator.standard_normal(size=shape, dtype=dtype))
        case "whole":
            return generator.integers(1, 4, size=shape).astype(dtype)
        case "faint":
            return dtype(FAINT) * generator.standard_normal(size=shape, dtype=dtype)
        case "bytes":
            return dtype(255) * generator.random(size=shape, dtype=dtype)


def random_feeds(specs: Iterable[FeedSpec], seed: int, *, repeated: bool = False) -> dict[str, Any]:
    """Draw every input from its own stream, so that one input's values do not depend on the others.

    A sequence is a list of tensors of one shape; optional values are present.

    With ``repeated``, only a part of a large input is drawn, and repeated, because drawing takes longer than a kernel does.
    """
    feeds: dict[str, Any] = {}
    for spec in specs:
        generator = np.random.default_rng([seed, zlib.crc32(spec.name.encode())])
        if "(" in spec.dtype:
            feeds[spec.name] = _nested(spec.dtype, spec, generator)
            continue
        is_part = repeated and math.prod(spec.shape) > PERIOD and spec.dtype != "string"
        shape = (PERIOD,) if is_part else spec.shape
        drawn = np.asarray(random_array(spec.dtype, shape, generator, bound=spec.bound, values=spec.values, low=spec.low))
        feeds[spec.name] = drawn if shape == spec.shape else np.resize(drawn, spec.shape)
    return feeds


def random_weights(specs: Iterable[FeedSpec], seed: int) -> dict[str, np.ndarray]:
    """Draw weights, scaled as trained ones are, so that sums are of the size of their summands and no activation saturates."""
    drawn = random_feeds(specs, seed, repeated=True)
    return {name: np.require(_scaled(array), requirements="C") for name, array in drawn.items()}  # an array without axes stays so


def _scaled(array: np.ndarray) -> np.ndarray:
    if array.ndim < 2 or array.dtype.kind != "f":
        return array
    return (array / math.sqrt(max(1, math.prod(array.shape[1:])))).astype(array.dtype)


def _nested(dtype: str, spec: FeedSpec, generator: np.random.Generator) -> Any:
    """Draw a value that is no tensor, or that may be absent."""
    if dtype.startswith("optional("):
        return _nested(dtype.removeprefix("optional(").removesuffix(")"), spec, generator)
    if dtype.startswith("seq("):
        element = dtype.removeprefix("seq(").removesuffix(")")
        return [_nested(element, spec, generator) for _ in range(ELEMENTS_OF_A_SEQUENCE)]
    return np.asarray(random_array(dtype, spec.shape, generator, bound=spec.bound, values=spec.values))
