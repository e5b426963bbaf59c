"""Compare a kernel's result with onnxruntime's on the same operands, when the kernel is first measured.

The model to compare with lies beside the kernel's plan as ``reference.onnx``: the fragment as standard operators, with its constants as
inputs that have the names of the artefact's weights.

For machines without onnxruntime, a summary of the result lies there instead, computed in float64 where the kernel is compiled: sums of few
elements each, with signs. One wrong element moves its sum by its own error.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from runtime.errors import LibraryMissing

REFERENCE_MODEL = "reference.onnx"
ROUNDS_INSIDE = "rounds_inside"
"""The name of an empty file beside the model, for a kernel that rounds intermediate numbers to bfloat16, such as the probabilities of
attention. A number midway between two of bfloat16 may be rounded either way."""
ONLY_REFERENCE = "the library has only its reference implementation"
"""The first words of the message about a kernel that was not run because it would take thousands of times too long."""
TOLERANCE = 1e-4
"""The largest accepted error of a float element, relative to the largest magnitude of the reference result."""
PART = 1 << 22
"""Elements compared at once, because results may be larger than the memory that is left."""
STORED_ERRORS: Mapping[str, float] = {"bfloat16": 2.0**-8}
"""The largest relative error of rounding an element to the type that a result is stored in, if its reference is not rounded."""
FLIPS = 1e-3
"""The share of elements that may differ in a result that is not float, because rounding may flip a comparison."""
FLIPPED_INSIDE, FLIPPED_ERROR = 0.05, 2.0**-7
"""The share of elements that may be off if a kernel rounds inside, and by how much, relative to the largest magnitude. Of scores up to 30
by magnitude, one in 400 probabilities rounds the other way; a row of the result is a sum of few large ones, each off by 2^-8 at most."""


EXPECTED_FILE = "expected.npz"
SUMMED = 64
"""The least number of elements of a large result in one sum of its summary: one wrong element still exceeds the others' rounding."""
SMALL = 4096
"""The largest result that is kept whole, in elements, and the most sums of a summary, so that archives stay small."""
MIXED = 0x9E3779B97F4A7C15
"""An odd number: products of positions with it have bits that look random."""
SAME = 1e-6
"""How far sums of equal operands may differ, relative to their magnitudes: other mathematical libraries round drawn numbers differently."""


@dataclass(frozen=True)
class Judged:
    """The part of a result that is judged: stretches of its elements in row-major order, and their values. It may be too large to hold."""

    elements: int
    """The number of elements of the whole result."""
    stretches: tuple[range, ...]
    values: Callable[[], Iterable[np.ndarray]]
    """Returns the values stretch by stretch."""

    @staticmethod
    def whole(result: np.ndarray) -> Judged:
        return Judged(result.size, (range(result.size),), lambda: [result])


class WrongResult(Exception):
    """A kernel computes something else than its fragment says."""


def reference_results(folder: Path, feeds: Mapping[str, np.ndarray], weights: Mapping[str, np.ndarray], threads: int) -> list[Any] | None:
    """Return the results of the reference without optimisations; None if there is none, or if onnxruntime has no such operator."""
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
    ports = {port.name: port.type for port in session.get_inputs()}
    inputs = {name: weights[name] if feeds.get(name) is None else feeds[name] for name in ports}
    inputs = {name: np.asarray(value, np.float32) if ports[name] == "tensor(float)" else value for name, value in inputs.items()}
    return list(session.run(None, inputs))


@dataclass(frozen=True)
class Expected:
    """Summaries of a kernel's results on drawn operands, and how far results may be off."""

    operands: tuple[float, float]
    """The fingerprint of the operands: if other ones are drawn, nothing can be compared."""
    tolerance: float
    """The largest error, relative to the largest magnitude of a result."""
    summaries: tuple[np.ndarray, ...]
    magnitudes: tuple[float, ...]
    sizes: tuple[int, ...]
    """The number of elements in each sum, by result; 1 if the result is kept whole."""
    elements: tuple[int, ...]
    """The number of elements of each result."""
    stretches: tuple[tuple[range, ...], ...]
    """The stretches of each result's elements, in row-major order, that are judged."""

    @staticmethod
    def of(results: Sequence[Judged], operands: Mapping[str, np.ndarray], tolerance: float) -> Expected:
        """Summarise results in float64."""
        summarised = [_summarised(result) for result in results]
        summaries, magnitudes, sizes = zip(*summarised, strict=True)
        elements, stretches = zip(*((each.elements, each.stretches) for each in results), strict=True)
        return Expected(fingerprint(operands), tolerance, summaries, magnitudes, sizes, elements, stretches)

    def write(self, folder: Path) -> None:
        """Write the summaries beside a plan."""
        numbers = np.array([*self.operands, self.tolerance, *self.magnitudes, *self.sizes, *self.elements], np.float64)
        stored: dict[str, Any] = {f"summary{k}": summary for k, summary in enumerate(self.summaries)}
        for k, stretches in enumerate(self.stretches):
            stored[f"stretches{k}"] = np.array([(each.start, each.stop) for each in stretches], np.int64)
        np.savez(folder / EXPECTED_FILE, numbers=numbers, **stored)

    @staticmethod
    def read(folder: Path) -> Expected | None:
        """Return the summaries beside a plan; None if there are none."""
        if not (folder / EXPECTED_FILE).exists():
            return None
        with np.load(folder / EXPECTED_FILE) as stored:
            count = sum(name.startswith("summary") for name in stored.files)
            weighted, total, tolerance, *rest = stored["numbers"].tolist()
            summaries = tuple(stored[f"summary{k}"].astype(np.float64) for k in range(count))
            stretches = tuple(tuple(range(*pair) for pair in stored[f"stretches{k}"].tolist()) for k in range(count))
        sizes, elements = tuple(map(int, rest[count : 2 * count])), tuple(map(int, rest[2 * count :]))
        return Expected((weighted, total), tolerance, summaries, tuple(rest[:count]), sizes, elements, stretches)

    def judge(self, results: Sequence[Any], operands: Mapping[str, np.ndarray]) -> None:
        """Raise WrongResult if a result is too far from the expected one."""
        most = SAME * self.operands[1]
        if any(abs(a - b) > most for a, b in zip(fingerprint(operands), self.operands, strict=True)):
            what = f"numpy {np.__version__} draws other operands than the one where kernels were exported: no result can be compared"
            raise LibraryMissing(what, fix="install the version of numpy that the archive was made with")
        for k, (result, expected, magnitude, size) in enumerate(zip(results, self.summaries, self.magnitudes, self.sizes, strict=True)):
            actual = np.asarray(result)
            if actual.size != self.elements[k]:
                raise WrongResult(f"the result has {actual.size} elements, it must have {self.elements[k]}")
            flat = actual.reshape(-1)
            pieces = (piece for each in self.stretches[k] for piece in _pieces(flat[each.start : each.stop]))
            with np.errstate(all="ignore"):
                difference = np.abs(_sums(pieces, sum(map(len, self.stretches[k])), size) - expected)
            difference = np.where(np.isfinite(expected), np.where(np.isnan(difference), np.inf, difference), 0.0)
            is_float = actual.dtype.kind in "fV"
            limit = self.tolerance * magnitude * max(1.0, math.sqrt(size / SUMMED))  # rounding errors add up as a square root
            wrong = int(np.sum(difference > (limit if is_float else 0.0)))
            if wrong > (0 if is_float else FLIPS * actual.size):
                what = f"{wrong} of {expected.size} sums of {size} elements are wrong"
                raise WrongResult(f"the largest error is {difference.max():.3g} where the largest magnitude is {magnitude:.3g} ({what})")


def fingerprint(operands: Mapping[str, np.ndarray]) -> tuple[float, float]:
    """Return the sum of the operands with weights that look random, and that of magnitudes; a part suffices, because drawn values
    repeat."""
    weighted = total = 0.0
    for name in sorted(operands):
        first, flat = zlib.crc32(name.encode()), np.asarray(operands[name]).reshape(-1)
        if flat.dtype.hasobject:
            flat = np.frombuffer(repr(flat.tolist()).encode(), np.uint8)
        part = np.nan_to_num(flat[:PART].astype(np.float64))
        weighted += float(part @ (2.0**-63 * _mixed(first, part.size).astype(np.float64) - 1.0))
        total += float(np.abs(part).sum())
    return weighted, total


def _mixed(first: int, count: int) -> np.ndarray:
    """Return 64 bits that look random for each of so many positions."""
    mixed: np.ndarray = np.arange(first, first + count, dtype=np.uint64) * np.uint64(MIXED)
    return mixed


def _summarised(result: Judged) -> tuple[np.ndarray, float, int]:
    """Return the summary of a result, its largest magnitude, and how many elements each sum has."""
    judged = sum(map(len, result.stretches))
    size = 1 if judged <= SMALL else max(SUMMED, -(-judged // SMALL))
    magnitude, is_finite, is_float = 0.0, True, False

    def noted() -> Iterator[np.ndarray]:
        nonlocal magnitude, is_finite, is_float
        for part in result.values():
            magnitude, is_float = max(magnitude, _magnitude(part) if part.size else 0.0), part.dtype.kind == "f"
            for flat in _pieces(part):
                is_finite = is_finite and bool(np.isfinite(flat).all())
                yield flat

    with np.errstate(all="ignore"):
        summary = _sums(noted(), judged, size)
    if not is_finite:  # a sum would hide which of its elements is not finite
        size, summary = 1, _sums(noted(), judged, 1)
    return summary.astype(np.float32) if is_float else summary, magnitude, size  # floats are compared to four digits


def _pieces(array: np.ndarray) -> Iterator[np.ndarray]:
    """Yield an array's elements in float64, in row-major order, not too many at once."""
    flat = array.reshape(-1)
    return (flat[start : start + PART].astype(np.float64) for start in range(0, flat.size, PART))


def _sums(pieces: Iterable[np.ndarray], elements: int, size: int) -> np.ndarray:
    """Return sums of ``size`` elements each, which lie far apart, each element with a sign of its own."""
    if size == 1:
        return np.concatenate([*pieces, np.empty(0)])
    sums, start = np.zeros(-(-elements // size)), 0
    for piece in pieces:
        signs = 1.0 - 2.0 * (_mixed(start, piece.size) >> np.uint64(63)).astype(np.float64)
        padded = np.zeros((start % sums.size + piece.size + sums.size - 1) // sums.size * sums.size)
        padded[start % sums.size : start % sums.size + piece.size] = piece * signs
        sums += padded.reshape(-1, sums.size).sum(axis=0)
        start += piece.size
    return sums


def judge(actual: Any, expected: Any, *, rounds_inside: bool = False) -> None:
    """Raise WrongResult if a result is too far from the expected one; elements whose expected value is not finite are not compared.

    If a kernel ``rounds_inside``, few elements may be off by the effect of rounding one number the other way.
    """
    actual, expected = np.asarray(actual), np.asarray(expected)
    if expected.dtype == np.float32 and actual.dtype.name in STORED_ERRORS and actual.shape == expected.shape:
        actual = _unrounded(actual, expected)
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        raise WrongResult(f"the result is {actual.dtype}{list(actual.shape)}, it must be {expected.dtype}{list(expected.shape)}")
    if expected.dtype.kind not in "fV":
        different = int(np.sum(actual != expected))
        if different > FLIPS * expected.size:
            raise WrongResult(f"{different} of {expected.size} elements differ")
        return
    actual, expected = actual.reshape(-1), expected.reshape(-1)
    parts = [(actual[start : start + PART], expected[start : start + PART]) for start in range(0, expected.size, PART)]
    magnitude = max((_magnitude(expected_part) for _, expected_part in parts), default=0.0)
    if all(_is_near(actual_part, expected_part, TOLERANCE * magnitude) for actual_part, expected_part in parts):
        return
    largest, wrong = 0.0, 0
    for actual_part, expected_part in parts:
        difference = _difference(actual_part, expected_part)
        largest = max(largest, float(np.max(difference, initial=0.0)))
        wrong += int(np.sum(difference > TOLERANCE * magnitude))
    may_flip = rounds_inside and largest <= FLIPPED_ERROR * magnitude
    if wrong > (FLIPPED_INSIDE * expected.size if may_flip else 0):
        raise WrongResult(
            f"the largest error is {largest:.3g} where the largest magnitude is {magnitude:.3g} "
            f"({wrong} of {expected.size} elements are wrong)"
        )


def _unrounded(result: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Return a stored result with its difference from the expected one reduced by what rounding explains."""
    with np.errstate(all="ignore"):
        difference = np.abs(result.astype(np.float32) - expected)
        explained = np.float32(STORED_ERRORS[result.dtype.name]) * np.abs(expected)
        nearest: np.ndarray = expected + np.maximum(difference - explained, np.float32(0))
    return nearest


def _magnitude(values: np.ndarray) -> float:
    """Return the largest magnitude of the finite values."""
    if values.dtype.kind == "f":
        least, most = float(values.min()), float(values.max())
        if math.isfinite(least) and math.isfinite(most):
            return max(most, -least)
    wide = values.astype(np.float64)
    return float(np.max(np.abs(wide), where=np.isfinite(wide), initial=0.0))


def _is_near(actual: np.ndarray, expected: np.ndarray, limit: float) -> bool:
    """Return whether finite results are near enough, in few passes; False requires the exact comparison."""
    if expected.dtype.kind != "f":
        return False
    with np.errstate(all="ignore"):
        difference = actual - expected
        return max(float(difference.max()), -float(difference.min())) <= limit


def _difference(actual: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Return the errors of elements: 0 if the expected one is not finite, infinity if the actual one is NaN."""
    expected_wide, actual_wide = expected.astype(np.float64), actual.astype(np.float64)
    with np.errstate(all="ignore"):
        difference = np.where(np.isfinite(expected_wide), np.abs(actual_wide - expected_wide), 0.0)
    return np.where(np.isnan(difference), np.inf, difference)
