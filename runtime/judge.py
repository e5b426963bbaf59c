"""Compare a kernel's result with onnxruntime's on the same operands, where the kernel is first measured.

The model to compare with lies beside the kernel's plan as ``reference.onnx``: the fragment as standard operators, its
constants as inputs that are called like the artefact's weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

REFERENCE_MODEL = "reference.onnx"
ONLY_REFERENCE = "the library has only its reference implementation"
"""How the message of a kernel begins that was not run because it would take thousands of times too long."""
TOLERANCE = 1e-4
"""Largest accepted error of a float element, relative to the largest magnitude of the reference result."""
FLIPS = 1e-3
"""Part of the elements of a result that is not float which may differ: a comparison may turn over by rounding."""


class WrongResult(Exception):
    """A kernel computes something else than its fragment says."""


def reference_results(folder: Path, feeds: Mapping[str, np.ndarray], weights: Mapping[str, np.ndarray], threads: int) -> list[Any] | None:
    """Run the reference without optimisations; None where there is none, or where onnxruntime has no such operator."""
    path = folder / REFERENCE_MODEL
    if not path.exists():
        return None
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # its threads must not disturb what is timed next
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except (onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented, onnxruntime.capi.onnxruntime_pybind11_state.InvalidGraph):
        return None
    wanted = {port.name: feeds.get(port.name) for port in session.get_inputs()}
    given = {name: weights[name] if value is None else value for name, value in wanted.items()}
    return list(session.run(None, given))


def judge(found: Any, expected: Any) -> None:
    """Raise WrongResult where a result is too far from the expected one; what is not finite there is not compared."""
    found, expected = np.asarray(found), np.asarray(expected)
    if found.shape != expected.shape or found.dtype != expected.dtype:
        raise WrongResult(f"the result is {found.dtype}{list(found.shape)}, it must be {expected.dtype}{list(expected.shape)}")
    if expected.dtype.kind not in "fV":
        different = int(np.sum(found != expected))
        if different > FLIPS * expected.size:
            raise WrongResult(f"{different} of {expected.size} elements differ")
        return
    if expected.dtype.kind == "f" and _is_near(found, expected):
        return
    want = expected.astype(np.float64)
    finite = np.isfinite(want)
    if not finite.any():
        return
    got = found.astype(np.float64)[finite]
    magnitude = float(np.max(np.abs(want[finite])))
    difference = np.abs(got - want[finite])
    largest = float(np.max(difference)) if np.isfinite(difference).all() else float("inf")
    if largest > TOLERANCE * magnitude:
        raise WrongResult(
            f"the largest error is {largest:.3g} where the largest magnitude is {magnitude:.3g} "
            f"({int(np.sum(~(difference <= TOLERANCE * magnitude)))} of {want.size} elements are wrong)"
        )


def _is_near(found: np.ndarray, expected: np.ndarray) -> bool:
    """Say of finite results whether they are near enough, with few passes over them; what is not said to be is looked at closely."""
    if not expected.size:
        return True
    with np.errstate(all="ignore"):
        least, most = float(expected.min()), float(expected.max())
        difference = found - expected
        largest = max(float(difference.max()), -float(difference.min()))
    return math.isfinite(least) and math.isfinite(most) and largest <= TOLERANCE * max(most, -least)
