"""Measure how far rounding alone moves a model's outputs: in onnxruntime, on the original model, and against it in float64."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import numpy_helper

from egraph.onnx import exporter
from egraph.onnx.exact_bytes import MARKS, exact_file, with_exact_bytes
from egraph.onnx.importer.infer import give_constants
from egraph.onnx.importer.skeleton import skeleton
from egraph.tensor import Graph, Program, walk
from egraph.tensor.ops.reference import OutOfTime, evaluate
from egraph.tolerance import Tolerance
from lower.roofline import node_flops
from runtime.opaque import open_session, saturates

RunModel: TypeAlias = Callable[[Mapping[str, Any]], Sequence[Any]]
RunOutput: TypeAlias = Callable[[Mapping[str, Any], int], np.ndarray | None]
"""Computes one output by its position, or None if it cannot."""
PART = 1 << 22
"""Number of elements that are compared at once."""
NOISE_FACTOR = 4.0
"""An error of more than this many times the effect of rounding on the original is the program's own."""
MOST_TOLERANCES = 10.0
"""Errors that rounding explains are accepted up to this many tolerances."""
IN_MEMORY_BYTES = 1 << 30
"""Size of the weights up to which a model with changed weights is passed in memory."""
MOST_FLOPS = 1e10
"""Most operations of an output that is computed in float64 as well: the interpreter takes 0.3 to 1 second for 1e9."""
FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16)


def open_exported(exported: Graph | Program, threads: int, *, optimise: bool = True) -> Any:
    """Open the standard model of a graph or a program in onnxruntime, which reads large weights in place."""
    model, constants = exporter.parts(exported)
    if not any(mark in model for mark in MARKS):
        session = open_onnxruntime(model, threads, optimise=optimise, constants=constants)
        session.constants = constants  # they must live as long as the session
        return session
    with TemporaryDirectory(prefix="einsat-model-") as folder:  # constants of products of bytes are replaced
        path = Path(folder) / "model.onnx"
        exporter.save(exported, path)
        return open_onnxruntime(path, threads, optimise=optimise)


def open_onnxruntime(
    model: Path | bytes, threads: int, *, optimise: bool = True, arena: bool = False,
    constants: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> Any:  # fmt: skip
    """Open a model (a file, or its bytes) in onnxruntime on the CPU, with all optimisations or with none; sums of bytes are exact.

    An ``arena`` keeps the memory that the largest run needed, in addition to everything else that is timed. ``constants`` are those that
    the model names but does not contain.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    level = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimise else level.ORT_DISABLE_ALL
    options.log_severity_level = 4  # errors are raised anyway, with our own message
    options.enable_cpu_mem_arena = arena
    give_constants(options, constants)
    return open_session(_exact(model), options)


def _exact(model: Path | bytes) -> str | bytes:
    """Return a file's name or a model's bytes; if it has products of bytes, those of the equal model whose sums do not saturate here.

    If onnxruntime's sums do not saturate on this processor, the model itself is returned, because products of unsigned bytes are slower: a
    BERT takes 100 ms, not 30.
    """
    if not saturates():
        return model if isinstance(model, bytes) else str(model)
    if isinstance(model, bytes):
        return exact_file(model)
    if not model.exists() or not any(mark in skeleton(model).SerializeToString() for mark in MARKS):
        return str(model)
    whole = onnx.load(model)
    return with_exact_bytes(whole).SerializeToString() if whole.ByteSize() <= IN_MEMORY_BYTES else str(model)


@dataclass(frozen=True)
class MeasuredNoise:
    """How far onnxruntime's own rounding moves an output, and the error that is to be judged."""

    error: float = math.inf
    noise: float = 0.0
    is_known: bool = False
    accepted: float = 0.0
    is_before_bytes: bool = False
    """Whether numbers that become bytes were moved."""
    from_float64: tuple[float, float] | None = None
    """The errors of the program and of onnxruntime against the output in float64, or None if not known."""
    tolerance: float = 0.0

    @property
    def explains(self) -> bool:
        """Return whether the error may be rounding that the model amplifies, or is onnxruntime's own."""
        return self.error <= NOISE_FACTOR * self.noise or (self.from_float64 is not None and self.from_float64[0] <= self.tolerance)

    @property
    def is_accepted(self) -> bool:
        """Return whether the error is explained and small enough to be accepted."""
        return self.explains and self.error <= self.accepted

    def __str__(self) -> str:
        if not self.is_known:
            return ""
        of = "numbers that become bytes" if self.is_before_bytes else "inputs and weights by their last bit"
        moved = f"rounding alone, in onnxruntime and of {of}, moves the original by {self.noise:.2g} there"
        text = f"; against onnxruntime without optimisations the error is {self.error:.2g}, and {moved}"
        if self.from_float64 is None:
            return text
        program, original = self.from_float64
        return f"{text}; from the model in float64 the program is {program:.2g} off, onnxruntime {original:.2g}"


UNKNOWN = MeasuredNoise()


class Noise:
    """The effect of rounding alone on the outputs of the original on some inputs; it is measured when first asked for."""

    def __init__(
        self, plain: RunModel, feeds: Mapping[str, Any], seed: int, plain_moved: RunModel | None = None, in_float64: RunOutput | None = None
    ) -> None:
        self._plain, self._feeds, self._seed, self._plain_moved, self._in_float64 = plain, feeds, seed, plain_moved, in_float64
        self._runs: tuple[Sequence[Any], ...] = ()
        self._exact: dict[int, np.ndarray | None] = {}

    def of(self, position: int, expected: Any, actual: Any, tolerance: Tolerance) -> MeasuredNoise:
        """Return the noise of an output."""
        if not self._runs:
            self._runs = (self._plain(self._feeds), *self._moved())
        exact, *moved = (run[position] for run in self._runs)
        if any(isinstance(value, list) for value in (expected, actual, exact)):
            return UNKNOWN
        same_size = (each for each in moved if np.shape(each) == np.shape(exact))
        noise = max(relative_error(exact, expected), *(relative_error(exact, each) for each in same_size), 0.0)
        most = MOST_TOLERANCES * tolerance.relative
        measured = MeasuredNoise(relative_error(exact, actual), noise, is_known=True, accepted=most, tolerance=tolerance.relative)
        if measured.explains or measured.error > most or self._in_float64 is None:
            return measured
        if position not in self._exact:
            self._exact[position] = self._in_float64(self._feeds, position)
        if (value := self._exact[position]) is None:
            return measured
        return replace(measured, from_float64=(relative_error(value, actual), relative_error(value, expected)))

    def _moved(self) -> Iterator[Sequence[Any]]:
        """Yield the outputs for moved inputs and for moved weights, if the model runs with them: they may decide sizes."""
        for run, feeds in ((self._plain, shaken(self._feeds, self._seed)), (self._plain_moved, self._feeds)):
            with suppress(Exception):  # onnxruntime raises a class a status; every one means "not these numbers"
                if run is not None:
                    yield run(feeds)


def shaken(feeds: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Return the inputs with every float changed by at most its last bit."""
    generator = np.random.default_rng(seed)
    return {name: _shaken(value, generator) for name, value in feeds.items()}


def _shaken(value: Any, generator: np.random.Generator) -> Any:
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
        return value
    steps = generator.integers(-1, 2, size=value.shape, dtype=np.int8)
    return np.asarray(value * (1 + steps * np.finfo(value.dtype).eps), value.dtype)  # a NumPy scalar becomes an array again


def run_in_float64(graph: Graph, seconds: float, feeds: Mapping[str, Any], position: int) -> np.ndarray | None:
    """Return an output by its operators' definitions, or None if one has none here or it takes longer than ``seconds``."""
    root = graph.roots[position]
    nodes = list(walk((root,)))
    if any(node.op == "Opaque" for node in nodes) or math.fsum(map(node_flops, nodes)) > MOST_FLOPS:
        return None
    values = {node: feeds[node.string("name")] for node in nodes if node.op == "Input"}
    values |= {node: graph.tensors[node.string("digest")] for node in nodes if node.op == "Constant"}
    end_seconds = time.monotonic() + seconds
    with np.errstate(all="ignore"), suppress(OutOfTime):  # infinities and NaN are values, as in every kernel
        return evaluate((root,), values, goes_on=lambda: time.monotonic() < end_seconds)[0]
    return None


class Unoptimised:
    """Runs a model without onnxruntime's optimisations; it is opened on its first run, and stays open if ``is_kept``."""

    def __init__(self, model: Path, threads: int, *, is_kept: bool, seed: int | None = None) -> None:
        """Run ``model``; with a ``seed``, its weights are changed in their last bit at random."""
        self._model, self._threads, self._is_kept, self._seed = model, threads, is_kept, seed
        self._session: Any = None
        self.opening_seconds = 0.0
        """Time that it took to open the model."""

    def __call__(self, feeds: Mapping[str, Any]) -> Sequence[Any]:
        """Return the outputs."""
        if (session := self._session) is None:
            started_seconds = time.monotonic()
            session = self._opened()
            self.opening_seconds += time.monotonic() - started_seconds
            self._session = session if self._is_kept else None
        results: Sequence[Any] = session.run(None, dict(feeds))
        return results

    def _opened(self) -> Any:
        if self._seed is None:
            return open_onnxruntime(self._model, self._threads, optimise=False)
        with TemporaryDirectory(prefix="einsat-shaken-") as folder:  # a session keeps its mapping of a deleted file
            return open_shaken(self._model, self._threads, Path(folder), self._seed)


def open_shaken(model: Path, threads: int, folder: Path, seed: int) -> Any:
    """Open a model with every float weight changed by at most its last bit, without optimisations; ``folder`` holds large weights.

    Scales that decide sizes are not changed: 96 values scaled by a last bit less than 1 are 95.
    """
    generator = np.random.default_rng(seed)
    proto = onnx.load(str(model))
    scales = {name for node in proto.graph.node if node.op_type in ("Resize", "Upsample") for name in node.input[1:]}
    made = ((node, attribute) for node in proto.graph.node if node.op_type == "Constant" for attribute in node.attribute)
    constants = (attribute.t for node, attribute in made if attribute.name == "value" and node.output[0] not in scales)
    weights = (each for each in proto.graph.initializer if each.name not in scales)
    tensors = [each for each in (*weights, *constants) if each.data_type in FLOATS]
    for tensor in tensors:
        tensor.CopyFrom(numpy_helper.from_array(_shaken(numpy_helper.to_array(tensor), generator), tensor.name))
    if sum(len(tensor.raw_data) for tensor in tensors) < IN_MEMORY_BYTES:
        return open_onnxruntime(proto.SerializeToString(), threads, optimise=False)
    path = folder / "shaken.onnx"
    onnx.save(proto, str(path), save_as_external_data=True, location="shaken.data")
    return open_onnxruntime(path, threads, optimise=False)


def relative_error(expected: Any, actual: Any) -> float:
    """Return the largest difference over the largest magnitude of ``expected``, both where it is finite."""
    expected_values, actual_values = (np.asarray(value).reshape(-1) for value in (expected, actual))
    difference, magnitude = 0.0, 0.0
    for start in range(0, expected_values.size, PART):
        expected_part, actual_part = (value[start : start + PART].astype(np.float64) for value in (expected_values, actual_values))
        finite = np.isfinite(expected_part)
        difference = float(np.max(np.abs(expected_part - actual_part), where=finite, initial=difference))  # NaN if any is found
        magnitude = float(np.max(np.abs(expected_part), where=finite, initial=magnitude))
    return difference / magnitude if magnitude > 0 else (0.0 if difference == 0 else float("inf"))
