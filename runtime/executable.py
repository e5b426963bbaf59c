"""A plan made ready to run: its steps on their device, and those that onnxruntime or Python runs. Arguments are trusted here.

executable = Executable(plan, weights, threads=2)
executable.run({"x": x})["y"]
executable.run_native(100)      # nanoseconds of each of 100 runs on the last inputs
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from runtime.cores import default_threads
from runtime.devices import Files, device
from runtime.dtypes import numpy_dtype
from runtime.errors import ArtefactError, ExecutionError
from runtime.opaque import OpaqueStep, Value
from runtime.plan import COPY_STEP, OPAQUE_STEP, Buffer, Plan, Port, Step
from runtime.storage import Areas, is_contiguous


class Executable:
    """A runnable plan. ``models`` gives an onnxruntime step's model (a path or its bytes) by its name in the plan.

    ``on`` names the device, if it is not the plan's own: a described one (``cuda:h100``). A model that onnxruntime runs as a whole needs
    none.

    A forked child may use the executables of its parent.
    """

    def __init__(
        self,
        plan: Plan,
        weights: Mapping[str, np.ndarray],
        *,
        threads: int | None = None,
        kernels: Path | None = None,
        models: Callable[[str], str | bytes] | None = None,
        dispatcher_path: Path | None = None,
        libraries: Callable[[str], Path] | None = None,
        on: str | None = None,
    ) -> None:
        self.plan = plan
        self._alone = _is_one_model(plan)
        self.device = device(plan.device if on is None or self._alone else on)
        if self.device.name != plan.device:
            raise ArtefactError(f"the program is for the device {plan.device!r}, not for {on!r}", fix="optimise the model for that one")
        self.threads = threads or openmp_default()
        self._lock = threading.Lock()
        self._closed = False
        self._last: dict[str, Value] = {}
        self._python_steps = {i: step for i, step in enumerate(plan.steps) if self._is_python(step)}
        files = Files(kernels, dispatcher_path, libraries)
        self.arithmetic = self.device.arithmetic(files)
        self._opaque = {i: self._load_opaque(step, models) for i, step in self._python_steps.items() if step.kind == OPAQUE_STEP}
        native = frozenset(range(len(plan.steps))) - frozenset(self._python_steps)
        self.loaded = self.device.load(plan, weights, native, threads=self.threads, files=files)
        self.implementations = self.loaded.implementations
        self._is_native = bool(native) and not self._python_steps
        self._areas = Areas(plan)
        self._segments = _segments(len(plan.steps), frozenset(self._python_steps))
        self._output_bytes = [self._areas.sizes_bytes[n] for (area, _), n in self._areas.numbers.items() if area == "output"]
        self._output_recipes = _output_recipes(plan, self._areas)
        self._host_inputs = [(p.buffer, p.name) for p in plan.inputs if plan.buffers[p.buffer].area == "host"]
        _executables.add(self)

    def _is_python(self, step: Step) -> bool:
        return step.kind == OPAQUE_STEP or (
            step.kind == COPY_STEP and any(self.plan.buffers[i].area == "host" for i in (*step.inputs, *step.outputs))
        )

    def _load_opaque(self, step: Step, models: Callable[[str], str | bytes] | None) -> OpaqueStep:
        if models is None:
            raise ArtefactError(f"the plan needs the model {step.spec['model']!r}", where=step.name, fix="pass models=")
        dtypes = [self.plan.buffers[i].dtype for i in step.inputs]
        return OpaqueStep(
            step, models(step.spec["model"]), dtypes, self.arithmetic,
            threads=self.threads, alone=self._alone, keep_subnormals=self.plan.keep_subnormals,
        )  # fmt: skip

    def after_fork(self) -> None:
        """Prepare for a forked child: the holder of the lock, and onnxruntime's threads, exist only in its parent."""
        self._lock = threading.Lock()
        for opaque in self._opaque.values():
            opaque.abandon()

    def close(self) -> None:
        """Free the native objects; the executable cannot run afterwards."""
        with self._lock:
            self._closed = True
            self._opaque.clear()
            self.loaded.close()

    def run(self, feeds: Mapping[str, Value], run_options: Any = None) -> dict[str, Value]:
        """Run on arrays that have the right types and shapes and are contiguous; return all outputs by name."""
        with self._lock:
            self._check_open()
            if self._alone:
                return self._run_alone(feeds, run_options)
            self._last = dict(feeds)
            outputs = self._new_outputs()
            values = self._bind(feeds, outputs)
            self._run_segments(values, run_options)
            return self._results(values)

    @property
    def run_whole(self) -> Callable[..., list[Value]] | None:
        """Return onnxruntime's own ``run`` if it runs the whole model under the plan's names, on values that numpy has; else None."""
        if not self._alone:
            return None
        step, opaque = self.plan.steps[0], self._opaque[0]
        ports = {port.buffer: port.name for port in (*self.plan.inputs, *self.plan.outputs)}
        is_same = [ports[i] for i in step.inputs] == opaque.input_names and [ports.get(i) for i in step.outputs] == opaque.output_names
        is_all = {port.buffer for port in self.plan.outputs}.issubset(step.outputs) and len(ports) == len(step.inputs) + len(step.outputs)
        return opaque.run_as_called if is_same and is_all and not opaque.is_foreign else None

    def remember(self, feeds: Mapping[str, Value]) -> None:
        """Keep inputs for the next timing."""
        with self._lock:
            self._last = dict(feeds)

    def run_native(self, count: int, *, evict: bool = False, weights_from_memory: bool = False) -> list[int]:
        """Run ``count`` times on the last inputs (random ones before any run); return nanoseconds a run.

        With ``evict`` each run finds its operands outside the cores' own caches, as a kernel in a program does; with
        ``weights_from_memory`` its constants are in no cache, as in a program whose weights do not fit into one.
        """
        with self._lock:
            values = self._prepare_timing()
            if self._is_native:
                return self.loaded.time(count, evict=evict, weights_from_memory=weights_from_memory)
            if self._alone:
                return [self._timed(lambda: self._run_alone(self._last, None)) for _ in range(count)]
            return [self._timed(lambda: self._run_segments(values, None)) for _ in range(count)]

    def profile(self, count: int = 10) -> list[tuple[str, float]]:
        """Return (step name, median microseconds) in running order, over ``count`` runs on the last inputs."""
        with self._lock:
            values = self._prepare_timing()
            if self._is_native:
                rows = self.loaded.profile(count)
            else:
                rows = [self._profile_in_python(values) for _ in range(count)]
            medians = np.median(np.array(rows, dtype=np.float64).reshape(count, len(self.plan.steps)), axis=0) / 1e3
            return [(step.name, float(median)) for step, median in zip(self.plan.steps, medians, strict=True)]

    def _profile_in_python(self, values: dict[int, Value]) -> list[int]:
        return [
            self._timed(partial(self._run_segments, values, None, [(i, i + 1, i in self._python_steps)]))
            for i in range(len(self.plan.steps))
        ]

    @staticmethod
    def _timed(call: Callable[[], object]) -> int:
        start = time.perf_counter_ns()
        call()
        return time.perf_counter_ns() - start

    def _check_open(self) -> None:
        if self._closed:
            raise ExecutionError("the executable is closed")

    def _prepare_timing(self) -> dict[int, Value]:
        self._check_open()
        if not self._last:
            self._last = random_inputs(self.plan)
        self._timing_outputs = self._new_outputs()
        return self._bind(self._last, self._timing_outputs)

    def _new_outputs(self) -> list[np.ndarray]:
        return [self.device.allocate(size_bytes) for size_bytes in self._output_bytes]

    def _bind(self, feeds: Mapping[str, Value], outputs: Sequence[np.ndarray]) -> dict[int, Value]:
        """Give the device the inputs and outputs; return the host values."""
        fresh = iter(outputs)
        self._bound = [feeds[key] if area == "input" else next(fresh) for area, key in self._areas.numbers]
        self.loaded.bind(self._bound)
        return {buffer: feeds[name] for buffer, name in self._host_inputs}

    def _run_segments(self, values: dict[int, Value], run_options: Any, segments: list[tuple[int, int, bool]] | None = None) -> None:
        for first, last, is_python in self._segments if segments is None else segments:
            if is_python:
                self.loaded.synchronise()
                self._run_python(first, values, run_options)
            else:
                self.loaded.launch(first, last)
        self.loaded.synchronise()

    def _run_python(self, index: int, values: dict[int, Value], run_options: Any) -> None:
        step = self.plan.steps[index]
        inputs = [self._read(i, values) for i in step.inputs]
        if step.kind == COPY_STEP:
            self._write(step.outputs[0], inputs[0], values, step)
            return
        opaque = self._opaque[index]
        results = opaque.run(None, dict(zip(opaque.input_names, inputs, strict=True)), run_options)
        for output, result in zip(step.outputs, results, strict=True):
            self._write(output, result, values, step)

    def _read(self, index: int, values: Mapping[int, Value]) -> Value:
        buffer = self.plan.buffers[index]
        return values[index] if buffer.area == "host" else self.loaded.read(buffer)

    def _write(self, index: int, value: Value, values: dict[int, Value], step: Step) -> None:
        buffer = self.plan.buffers[index]
        if buffer.area == "host":
            values[index] = value
            return
        if value.shape != buffer.shape or value.dtype != numpy_dtype(buffer.dtype):
            raise ExecutionError(
                f"a step returned {value.dtype}{list(value.shape)} where the plan has {buffer.dtype}{list(buffer.shape)}",
                where=step.name, fix="optimise the model again with --shape for its dynamic inputs",
            )  # fmt: skip
        self.loaded.write(buffer, value)

    def _run_alone(self, feeds: Mapping[str, Value], run_options: Any) -> dict[str, Value]:
        """Hand a whole model to onnxruntime."""
        self._last = dict(feeds)
        step, opaque = self.plan.steps[0], self._opaque[0]
        names = {port.buffer: port.name for port in self.plan.inputs}
        inputs_by_name = {name: feeds[names[index]] for name, index in zip(opaque.input_names, step.inputs, strict=True)}
        results = dict(zip(step.outputs, opaque.run(None, inputs_by_name, run_options), strict=True))
        inputs = {port.buffer: feeds[port.name] for port in self.plan.inputs}
        return {port.name: results[port.buffer] if port.buffer in results else _copied(inputs[port.buffer]) for port in self.plan.outputs}

    def _results(self, values: Mapping[int, Value]) -> dict[str, Value]:
        """Return the outputs; none shares memory with the arena, a weight, an input or another output."""
        results = {}
        for name, index, number, shape, dtype in self._output_recipes:
            if number >= 0:
                results[name] = np.ndarray(shape, dtype, self._bound[number])
            elif number == COPIED:
                results[name] = self._copy_out(index)
            else:
                results[name] = _copied(values[index]) if number == HOST_COPIED else values[index]
        return results

    def _copy_out(self, index: int) -> np.ndarray:
        return np.array(self.loaded.read(self.plan.buffers[index]), order="C")


_executables: weakref.WeakSet[Executable] = weakref.WeakSet()


def _after_fork() -> None:
    for executable in list(_executables):
        executable.after_fork()


os.register_at_fork(after_in_child=_after_fork)


COPIED, HOST, HOST_COPIED = -1, -2, -3
"""The ways in which an output without an area of its own is made."""


def _is_one_model(plan: Plan) -> bool:
    """Return whether onnxruntime runs everything, from the plan's own inputs to its own outputs."""
    if len(plan.steps) != 1 or plan.steps[0].kind != OPAQUE_STEP:
        return False
    inputs = {port.buffer for port in plan.inputs}
    return inputs.issuperset(plan.steps[0].inputs) and all(port.buffer in inputs | set(plan.steps[0].outputs) for port in plan.outputs)


def _output_recipes(plan: Plan, areas: Areas) -> list[tuple[str, int, int, tuple[int, ...], Any]]:
    """Return (name, buffer, area that becomes the output or another way to make it, shape, dtype) for each output."""
    used: set[str] = set()
    unavailable = {port.buffer for port in plan.inputs}
    recipes = []
    for port in plan.outputs:
        buffer = plan.buffers[port.buffer]
        number = HOST_COPIED if port.buffer in unavailable else HOST
        unavailable.add(port.buffer)
        if buffer.area == "output" and buffer.key not in used and _is_whole(buffer):
            used.add(buffer.key)
            number = areas.numbers["output", buffer.key]
        elif buffer.area != "host":
            number = COPIED
        recipes.append((port.name, port.buffer, number, buffer.shape, None if number <= HOST else numpy_dtype(buffer.dtype)))
    return recipes


def _is_whole(buffer: Buffer) -> bool:
    return buffer.offset == 0 and is_contiguous(buffer)


def _copied(value: Value) -> Value:
    return value.copy() if isinstance(value, np.ndarray) else value


def _segments(count: int, python_steps: frozenset[int]) -> list[tuple[int, int, bool]]:
    """Return (first, last, is_python): each python step alone, the native steps between them together."""
    segments: list[tuple[int, int, bool]] = []
    for index in range(count):
        if index in python_steps:
            segments.append((index, index + 1, True))
        elif segments and not segments[-1][2]:
            segments[-1] = (segments[-1][0], index + 1, False)
        else:
            segments.append((index, index + 1, False))
    return segments


def openmp_default() -> int:
    """Return the number of threads to use when none is given: OMP_NUM_THREADS, else one a core that is available."""
    text = os.environ.get("OMP_NUM_THREADS", "")
    return int(text) if text.isdigit() and int(text) > 0 else default_threads()


def random_inputs(plan: Plan, seed: int = 0) -> dict[str, np.ndarray]:
    """Draw inputs for timing; a size that is only known when running becomes 1."""
    from runtime.feeds import FeedSpec, random_feeds

    def sizes(port: Port) -> tuple[int, ...]:
        return tuple(size if isinstance(size, int) else 1 for size in port.shape or ())

    return random_feeds([FeedSpec(port.name, port.dtype, sizes(port)) for port in plan.inputs], seed)
