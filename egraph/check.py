"""Compare what was saved with onnxruntime on the original model: the last word before anything is written.

The error of an output is its largest absolute difference over the largest magnitude of the reference output: small
entries of a large tensor carry the rounding of their large neighbours. NaN and infinities must be at the same places.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from egraph.check_tolerance import Tolerance
from egraph.cost import index_bounds
from egraph.errors import CheckFailed, ModelError
from egraph.ir import Graph
from runtime.feeds import DEFAULT_BOUND, FeedSpec, random_feeds

RunModel: TypeAlias = Callable[[Mapping[str, Any]], Sequence[Any]]
TRIED_SIZES = (2, 8, 32, 64, 224)
"""Sizes tried for dynamic dimensions, until onnxruntime accepts them."""


@dataclass(frozen=True)
class CheckResult:
    """How far the saved files are from the original, over all compared outputs."""

    inputs: int
    max_rel_err: float
    worst_output: str
    max_rel_err_by_file: Mapping[str, float]


def open_onnxruntime(path: Path, threads: int) -> Any:
    """Open a model in onnxruntime on the CPU with all optimisations."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def find_feeds(session: Any, graph: Graph, seed: int) -> tuple[FeedSpec, ...]:
    """Return inputs that the original model accepts: sizes for its dynamic dimensions, bounds for its integers.

    Raises ModelError when onnxruntime cannot run the original on any of them.
    """
    bounds = index_bounds(graph.roots)
    problem: Exception | None = None
    shapes = [node.type.shape for node in graph.inputs]
    is_dynamic = any(isinstance(size, str) for shape in shapes for size in shape or ())
    for size in TRIED_SIZES if is_dynamic else TRIED_SIZES[:1]:
        for batch in (1, size) if is_dynamic else (1,):
            for bound in (None, DEFAULT_BOUND, 1):
                specs = tuple(
                    FeedSpec(
                        str(node.attribute("name")),
                        node.type.dtype,
                        tuple(_size(value, axis, batch, size) for axis, value in enumerate(node.type.shape or ())),
                        bound or bounds.get(node, DEFAULT_BOUND),
                    )
                    for node in graph.inputs
                )
                try:
                    session.run(None, random_feeds(specs, seed))
                except Exception as error:  # onnxruntime raises a class a status; every one means "not these inputs"
                    problem = error
                else:
                    return specs
    raise ModelError(
        f"onnxruntime cannot run the original model on random inputs: {problem}",
        fix="give the sizes of dynamic inputs with --shape NAME:SIZES" if is_dynamic else "check that the model runs in onnxruntime",
    )


def _size(value: int | str, axis: int, batch: int, size: int) -> int:
    if isinstance(value, int):
        return value
    return batch if axis == 0 else size


def check(
    reference: RunModel,
    candidates: Mapping[str, RunModel],
    output_names: Sequence[str],
    specs: tuple[FeedSpec, ...],
    *,
    tolerance: Tolerance,
    count: int,
    seed: int,
) -> CheckResult:
    """Compare each saved file (by name) with the reference on ``count`` random inputs; raises CheckFailed."""
    worst: dict[str, float] = dict.fromkeys(candidates, 0.0)
    worst_output, worst_error = "", -1.0
    for number in range(count):
        feeds = random_feeds(specs, seed + 1 + number)
        expected = reference(feeds)
        for file, run in candidates.items():
            try:
                found = run(feeds)
            except Exception as error:
                raise CheckFailed(f"{file} does not run: {type(error).__name__}: {error}", where=file) from error
            for name, want, got in zip(output_names, expected, found, strict=True):
                relative = compare(want, got, tolerance, where=f"{file}, output {name!r}, random input {number}")
                worst[file] = max(worst[file], relative)
                if relative > worst_error:
                    worst_output, worst_error = name, relative
    return CheckResult(count, max(worst.values(), default=0.0), worst_output, worst)


def compare(want: Any, got: Any, tolerance: Tolerance, *, where: str) -> float:
    """Return the relative error of an output; raises CheckFailed when it is too large or of another kind."""
    if want is None and got is None:
        return 0.0
    if isinstance(want, list) and isinstance(got, list) and len(want) == len(got):
        pairs = enumerate(zip(want, got, strict=True))
        return max([compare(w, g, tolerance, where=f"{where}[{i}]") for i, (w, g) in pairs], default=0.0)
    if want is None or got is None or isinstance(want, list) or isinstance(got, list):
        raise CheckFailed("the output is of another kind than the original's", where=where)
    want, got = np.asarray(want), np.asarray(got)
    if want.shape != got.shape or want.dtype != got.dtype:
        raise CheckFailed(f"the output is {got.dtype}{list(got.shape)}, it must be {want.dtype}{list(want.shape)}", where=where)
    if not _is_floating(want.dtype):
        if not np.array_equal(want, got):
            raise CheckFailed(f"{int(np.sum(want != got))} of {want.size} elements differ", where=where)
        return 0.0
    wide = np.complex128 if want.dtype.kind == "c" else np.float64
    want, got = want.astype(wide), got.astype(wide)
    finite = np.isfinite(want)
    if not np.array_equal(np.isnan(want), np.isnan(got)) or not np.array_equal(finite, np.isfinite(got)):
        raise CheckFailed("NaN or infinity at other places than in the original", where=where)
    infinite = ~finite & ~np.isnan(want)
    if not np.array_equal(want[infinite], got[infinite]):
        raise CheckFailed("infinities of the other sign than in the original", where=where)
    if not finite.any():
        return 0.0
    difference = float(np.max(np.abs(want[finite] - got[finite])))
    magnitude = float(np.max(np.abs(want[finite])))
    relative = difference / magnitude if magnitude > 0 else (0.0 if difference == 0 else float("inf"))
    if difference > tolerance.absolute + tolerance.relative * magnitude:
        raise CheckFailed(
            f"the largest error is {difference:.3g} where the output's largest magnitude is {magnitude:.3g} "
            f"({relative:.3g} relative; accepted: {tolerance.relative:g} relative plus {tolerance.absolute:g})",
            where=where,
            fix="python -m egraph.inspect names the rules behind an output; --allow exact or --skip-rule NAME leaves rules out, "
            "--tolerance REL,ABS accepts more",
        )
    return relative


def _is_floating(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "fc" or dtype.name.startswith(("bfloat16", "float8", "float4", "float6"))
