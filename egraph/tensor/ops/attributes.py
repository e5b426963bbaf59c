"""The kind of value that each attribute name holds; a name means the same in every operator."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from egraph.tensor.ops.sizes import refuse

_INTEGER = (
    "axis", "batch_dims", "bits", "count_include_pad", "exclude_outside", "group", "keeps_cell", "linear_before_reset", "select_last_index",
    "size",
)  # fmt: skip
_FLOAT = ("alpha", "beta", "bias", "cubic_coeff_a", "epsilon", "gamma", "max", "min", "value")
BOUNDS = ("max", "min", "value")
"""Floats that may be infinite; none may be NaN."""
_TEXT = ("activation", "approximate", "coordinate_mode", "direction", "layout", "mode", "nearest_mode", "text", "to")
_INTEGERS = (
    "after", "axes", "before", "dilations", "ends", "kernel_shape", "output_padding", "pads", "perm", "shape", "sizes", "starts",
    "steps", "strides",
)  # fmt: skip
_FLOATS = ("scales",)

KINDS: Mapping[str, tuple[type[Any], type[Any] | None, str]] = {
    **dict.fromkeys(_INTEGER, (int, None, "an int")),
    **dict.fromkeys(_FLOAT, (float, None, "a float")),
    **dict.fromkeys(_TEXT, (str, None, "a str")),
    **dict.fromkeys(_INTEGERS, (tuple, int, "a tuple of ints")),
    **dict.fromkeys(_FLOATS, (tuple, float, "a tuple of floats")),
}


def check_attributes(expected: tuple[str, ...], attributes: Mapping[str, Any]) -> None:
    """Refuse missing, unknown and wrongly typed attributes; nothing is completed or converted."""
    missing = [name for name in expected if name not in attributes]
    if missing:
        refuse(f"missing attribute{'s' * (len(missing) > 1)} {', '.join(missing)} (defaults are always written out)")
    unknown = [name for name in attributes if name not in expected]
    if unknown:
        refuse(f"unknown attribute{'s' * (len(unknown) > 1)} {', '.join(unknown)}; it has {', '.join(expected) or 'none'}")
    for name, value in attributes.items():
        outer, inner, text = KINDS[name]
        if type(value) is not outer or (inner is not None and any(type(entry) is not inner for entry in value)):
            refuse(f"attribute {name} must be {text}, got {value!r}")
        for entry in value if outer is tuple else (value,):
            if isinstance(entry, float) and not (math.isfinite(entry) or (name in BOUNDS and not math.isnan(entry))):
                refuse(f"attribute {name} must be finite, got {entry}")
