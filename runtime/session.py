"""Run an optimised model as ``onnxruntime.InferenceSession`` would.

session = Session("model.einsat", threads=2)         # or "model.opt.onnx", whose folder lies beside it
outputs = session.run(None, {"x": x})
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from runtime.artefact import Artefact
from runtime.cores import usable_cores
from runtime.dtypes import ELEMENT_TYPES, numpy_dtype, ort_type
from runtime.errors import ExecutionError, InvalidArgument
from runtime.executable import Executable, openmp_default
from runtime.opaque import Value
from runtime.plan import Plan, Port
from runtime.sizes import ORIGINAL, Padded, Sizes, as_array


@dataclass(frozen=True)
class NodeArg:
    """An input or output as onnxruntime describes it."""

    name: str
    type: str
    shape: list[int | str | None]


class Session:
    """An optimised model. It can be called from several threads; runs of one session follow each other.

    It uses at most ``threads`` threads, and never more than the cores that this process may use: artefacts travel to smaller machines, and
    threads that share a core wait for each other at the end of every kernel.

    In an artefact for several sizes, each plan is opened when an input first has its sizes.

    ``on`` names a described device (``cuda:h100``): the program is executed and checked without such a device.
    """

    def __init__(self, path: str | Path | Artefact, *, threads: int | None = None, on: str | None = None) -> None:
        if threads is not None and threads < 1:
            raise InvalidArgument(f"threads must be at least 1, got {threads}")
        self.artefact = path if isinstance(path, Artefact) else Artefact.open(Path(path))
        self.plan: Plan = self.artefact.plan
        """The plan; in an artefact for several sizes, that of the original model, which names the sizes."""
        self._on = on
        self._threads = min(threads or openmp_default(), usable_cores())
        self._output_names = [port.name for port in self.plan.outputs]
        self._fed: Mapping[str, Any] | None = None
        self._sizes = self.artefact.sizes
        self._opened: dict[str, Session] = {}
        self._folders: dict[tuple[int, ...], str] = {}
        self._padded: dict[tuple[int, ...], Padded] = {}
        self._executable: Executable | None = None
        self._run_whole: Callable[..., list[Value]] | None = None
        if self._sizes is None:
            self._executable = Executable(
                self.plan, self.artefact.weights, threads=self._threads, kernels=self.artefact.kernels,
                models=self.artefact.model, dispatcher_path=self.artefact.dispatcher, libraries=self.artefact.library, on=on,
            )  # fmt: skip
            self._run_whole = self._executable.run_whole
        else:
            self._folders = {bucket.sizes: bucket.runs for bucket in self._sizes.buckets}
            self._padded = {point: padded for padded in self._sizes.padded for point in padded.points}
            self._last_folder = next((bucket.runs for bucket in reversed(self._sizes.buckets) if bucket.has_program), ORIGINAL)
        self._is_open = True

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    @property
    def executable(self) -> Executable:
        """The executable; for several sizes the one that ran last, at first the largest planned one."""
        if self._sizes is not None:
            return self._at(self._last_folder).executable
        if self._executable is None:
            raise ExecutionError("the session is closed", where=str(self.artefact.folder))
        return self._executable

    def close(self) -> None:
        """Free arena, kernels and packed weights."""
        self._is_open = False
        while self._opened:
            self._opened.popitem()[1].close()
        if self._executable is not None:
            self._executable.close()
            self._executable = self._run_whole = None

    def get_inputs(self) -> list[NodeArg]:
        return [_node_arg(port) for port in self.plan.inputs]

    def get_outputs(self) -> list[NodeArg]:
        return [_node_arg(port) for port in self.plan.outputs]

    def get_providers(self) -> list[str]:
        return ["EinsatExecutionProvider"]

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: Any = None,
        *,
        out: Mapping[str, np.ndarray] | None = None,
    ) -> list[Value]:
        """Run the model. Feeds may be arrays or anything with ``__dlpack__``.

        Outputs are new arrays; with ``out`` the named ones are copied into the given arrays, which are returned. A model that was kept
        unchanged is passed to onnxruntime directly, and costs what it costs there.
        """
        if self._sizes is not None:
            return self._run_by_size(self._sizes, output_names, input_feed, run_options, out)
        if self._run_whole is not None and out is None:
            self._fed = input_feed
            try:
                return self._run_whole(output_names or self._output_names, input_feed, run_options)
            except Exception:  # onnxruntime's exceptions share no base class
                pass  # feeds that it refuses are converted below, or refused with our own message
        executable = self.executable
        for name in output_names or ():
            if name not in self._output_names:
                raise InvalidArgument(f"INVALID_ARGUMENT : Invalid output name:{name}; the outputs are {self._output_names}")
        results = executable.run(self._checked(input_feed), run_options)
        self._give(results, out or {})
        return [results[name] for name in (output_names or self._output_names)]

    def _give(self, results: dict[str, Value], out: Mapping[str, np.ndarray]) -> None:
        """Copy results into the arrays given for them, which take their places."""
        for name, target in out.items():
            if name not in results:
                raise InvalidArgument(f"INVALID_ARGUMENT : Invalid output name:{name}; the outputs are {self._output_names}")
            result = results[name]
            if target.shape != result.shape or target.dtype != result.dtype:
                raise InvalidArgument(
                    f"INVALID_ARGUMENT : output {name} is {result.dtype}{list(result.shape)}, "
                    f"the array given is {target.dtype}{list(target.shape)}"
                )
            np.copyto(target, result)
            results[name] = target

    def _run_by_size(
        self, sizes: Sizes, output_names: Sequence[str] | None, feed: Mapping[str, Any], run_options: Any,
        out: Mapping[str, np.ndarray] | None,
    ) -> list[Value]:  # fmt: skip
        """Run the plan for the sizes of the feed, that of a larger size if rows may be added, or the original model."""
        point = sizes.point(feed)
        padded = None if point is None else self._padded.get(point)
        if point is not None and padded is not None:
            self._last_folder = self._folders[padded.point]
            names = self._output_names if out else output_names or self._output_names
            padded_results = self._at(self._last_folder).run(names, sizes.pad(padded, feed), run_options)
            results = {name: padded.kept(name, result, point[padded.size]) for name, result in zip(names, padded_results, strict=True)}
            self._give(results, out or {})
            return [results[name] for name in (output_names or self._output_names)]
        folder = ORIGINAL if point is None else self._folders.get(point, ORIGINAL)
        session = self._at(folder)
        self._last_folder = folder
        return session.run(output_names, feed, run_options, out=out)

    def _at(self, folder: str) -> Session:
        """Return the session of a folder, opened when it is first needed; weights are mapped once for all."""
        if not self._is_open:
            raise ExecutionError("the session is closed", where=str(self.artefact.folder))
        if folder not in self._opened:
            opened = Session(self.artefact.at(folder), threads=self._threads, on=self._on)
            if self._opened.setdefault(folder, opened) is not opened:  # another thread was faster
                opened.close()
            if not self._is_open and (late := self._opened.pop(folder, None)) is not None:  # closed meanwhile
                late.close()
        session = self._opened.get(folder)
        if session is None:
            raise ExecutionError("the session is closed", where=str(self.artefact.folder))
        return session

    def run_native(self, count: int, *, evict: bool = False, weights_from_memory: bool = False) -> list[int]:
        """Run ``count`` times on the last feeds inside the native dispatcher; return nanoseconds a run (options: see Executable)."""
        if self._sizes is not None:
            return self._at(self._last_folder).run_native(count, evict=evict, weights_from_memory=weights_from_memory)
        self._remember()
        return self.executable.run_native(count, evict=evict, weights_from_memory=weights_from_memory)

    def profile(self, count: int = 10) -> list[tuple[str, float]]:
        """Return (step name, median microseconds) in running order, on the last feeds."""
        if self._sizes is not None:
            return self._at(self._last_folder).profile(count)
        self._remember()
        return self.executable.profile(count)

    def _remember(self) -> None:
        """Pass the last feeds to the executable, if it has not seen them."""
        if self._fed is not None:
            self.executable.remember(self._checked(self._fed))

    def _checked(self, feed: Mapping[str, Any]) -> dict[str, Value]:
        missing = [port.name for port in self.plan.inputs if port.name not in feed]
        if missing:
            raise InvalidArgument(f"Required inputs ({missing}) are missing from input feed ({list(feed)}).")
        if len(feed) > len(self.plan.inputs):
            names = {port.name for port in self.plan.inputs}
            unknown = next(name for name in feed if name not in names)
            raise InvalidArgument(f"INVALID_ARGUMENT : Invalid input name: {unknown}; the inputs are {sorted(names)}")
        return {port.name: checked_input(port, feed[port.name]) for port in self.plan.inputs}


def checked_input(port: Port, value: Any) -> Value:
    """Return a feed as a contiguous array of the port's type and shape; raise InvalidArgument as onnxruntime does."""
    if port.dtype not in ELEMENT_TYPES:
        return value
    array = as_array(value)
    expected = numpy_dtype(port.dtype)
    if array.dtype != expected:
        if port.dtype == "string" and array.dtype.kind in "US":
            array = array.astype(np.object_)
        else:
            actual = ort_type(array.dtype.name) if array.dtype.name in ELEMENT_TYPES else str(array.dtype)
            raise InvalidArgument(
                f"INVALID_ARGUMENT : Unexpected input data type for {port.name}. Actual: ({actual}) , expected: ({ort_type(port.dtype)})"
            )
    if port.shape is not None:
        if len(array.shape) != len(port.shape):
            raise InvalidArgument(
                f"INVALID_ARGUMENT : Invalid rank for input: {port.name} Got: {array.ndim} Expected: {len(port.shape)}, "
                f"shape {list(array.shape)} instead of {list(port.shape)}"
            )
        if array.shape != port.shape:
            _check_sizes(port, array)
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def _check_sizes(port: Port, array: np.ndarray) -> None:
    wrong = [
        (axis, actual, size)
        for axis, (actual, size) in enumerate(zip(array.shape, port.shape or (), strict=True))
        if isinstance(size, int) and actual != size
    ]
    if wrong:
        lines = "".join(f"\n index: {axis} Got: {actual} Expected: {size}" for axis, actual, size in wrong)
        raise InvalidArgument(
            f"INVALID_ARGUMENT : Got invalid dimensions for input: {port.name} for the following indices{lines}",
            fix=f"feed that shape, or optimise the model with --shape {port.name}:{','.join(map(str, array.shape))}",
        )


def _node_arg(port: Port) -> NodeArg:
    return NodeArg(port.name, ort_type(port.dtype), list(port.shape) if port.shape is not None else [])
