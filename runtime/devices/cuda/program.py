"""A plan on a CUDA device: one arena, weights uploaded once, each run of steps captured as a graph and replayed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from runtime.devices.cuda import kernels as kernel_file
from runtime.devices.cuda.cublas import CUBLAS_STEP
from runtime.devices.cuda.cudnn import ALIGNMENT_BYTES as ALIGNED_BYTES
from runtime.devices.cuda.cudnn import CUDNN_STEP, EnginePlan, alignment_bytes, with_packed
from runtime.devices.cuda.driver import ALIGNMENT_BYTES, BRANCHES, COMPUTE, COPIES, Driver, Location
from runtime.devices.cuda.streams import Schedule, schedule, streams_of
from runtime.dtypes import numpy_dtype
from runtime.errors import ArtefactError
from runtime.plan import COPY_STEP, Buffer, Plan, Step
from runtime.storage import Areas, Storage, byte_range, extent, is_contiguous, window_over

LIBRARY_STEPS = (CUDNN_STEP, CUBLAS_STEP)
MOST_COPIES = 64
"""The most copies of a program's memory that are used in turn while it is timed."""
REPEATED_LAUNCHES = 20
"""Launches of a step in the graph that times it; they share the time of launching the graph."""
WARM_UP_REPLAYS = 10
"""Replays before the first timed one, because clocks rise under load."""
Command = Callable[[int], None]
"""Enqueues a step in a stream."""


@dataclass
class _Memory:
    """Addresses of a program's areas: of the arena, of inputs and outputs by number, and of constants by name."""

    arena: int
    ports: list[int]
    constants: dict[str, int] = field(default_factory=dict)


class CudaProgram:
    """Steps of one plan on one driver.

    Inputs are uploaded on a stream of their own, for which the steps wait; outputs are downloaded on it once the steps are done. Steps run
    on one stream or on several, as the plan's notes say (``runtime.devices.cuda.streams``). When a run of steps is launched for the first
    time, its kernels are launched one by one, so that libraries initialise themselves only once. The second time, the run is captured.
    """

    def __init__(
        self, plan: Plan, weights: Mapping[str, np.ndarray], native: frozenset[int], driver: Driver, generated: Path | None
    ) -> None:
        self.plan, self.driver = plan, driver
        self.implementations: dict[int, str] = {}
        """The plan of its library that is not offered here, by step, so that the library's favourite computes the step."""
        self.copies: Counter[str] = Counter(to_device=0, to_host=0)
        """Copies for steps that run on the host, one by one."""
        Storage(plan, weights, lambda size_bytes: np.empty(0, np.uint8))  # refuses windows that leave their areas
        self._weights = weights
        self._areas = Areas(plan)
        ports = [driver.allocate(size_bytes, f"{area} {key!r}") for (area, key), size_bytes in self._sized_areas()]
        self._memory = _Memory(driver.allocate(plan.arena_bytes, "arena"), ports)
        self._constants_bytes = 0
        self._rotated: tuple[object, int] | None = None
        """A graph of launches on copies of the program's memory in turn, and the number of copies."""
        self._kernels = kernel_file.read(generated) if generated is not None else {}
        self._pending: list[Callable[[int], None]] = []
        self._commands: dict[int, Command] = {}
        self._workspace_bytes = 0
        for index in sorted(native):
            self._commands[index] = self._command(index)
        self._streams = streams_of(plan)
        self._schedules: dict[tuple[int, int], Schedule] = {}
        self._workspaces = {
            stream: driver.allocate(self._workspace_bytes, "workspace") for stream in (COMPUTE, *BRANCHES)[: self._streams]
        }
        self._upload_weights()
        self._written = {index: self._outputs_of(plan.steps[index]) for index in native}
        self._graphs: dict[tuple[int, int], object] = {}
        self._seen: set[tuple[int, int]] = set()
        self._bound: list[np.ndarray] = []
        self._fresh: set[int] = set()

    def _sized_areas(self) -> list[tuple[tuple[str, str], int]]:
        return list(zip(self._areas.numbers, self._areas.sizes_bytes, strict=True))

    def _upload_weights(self) -> None:
        """Copy all constants into one allocation, once."""
        used = dict.fromkeys(buffer.key for buffer in self.plan.buffers if buffer.area == "weight")
        arrays: dict[str, np.ndarray] = {key: self._weights[key] for key in used}
        for name, array in self._packed.items():
            arrays[name] = array
        offsets, end = {}, 0
        for key, array in arrays.items():
            offsets[key] = end
            end += -(-array.nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        base, self._constants_bytes = self.driver.allocate(end, "weights"), end
        for key, array in arrays.items():
            self._memory.constants[key] = base + offsets[key]
            self.driver.upload(base + offsets[key], np.ascontiguousarray(array).reshape(-1), COPIES)
        self._uploaded = self.driver.record(COPIES)
        self.driver.wait(COMPUTE, self._uploaded)
        self.driver.synchronise(COPIES)
        self._weights = {}

    @property
    def _packed(self) -> dict[str, np.ndarray]:
        """Return the constants that libraries read in another order, by name."""
        packed = {}
        for step in self.plan.steps:
            for position in _packed_positions(step):
                buffer = self.plan.buffers[step.inputs[position]]
                packed[_packed_name(buffer)] = np.moveaxis(window_over(buffer, self._weights[buffer.key].reshape(-1), buffer.offset), 1, -1)
        return packed

    def _command(self, index: int) -> Command:
        step = self.plan.steps[index]
        operands = [self.plan.buffers[i] for i in step.inputs]
        output = self.plan.buffers[step.outputs[0]]
        driver = self.driver
        if step.kind == COPY_STEP:
            return lambda stream: driver.copy(self.location(operands[0]), self.location(output), stream)
        if step.kind == kernel_file.GENERATED_STEP:
            return self._generated(step, operands, output)
        if step.kind in LIBRARY_STEPS:
            return self._library(index, operands, output)
        fix = "optimise the model for this device: --target cuda:h100"
        raise ArtefactError(f"a CUDA device knows no steps of kind {step.kind!r}", where=step.name, fix=fix)

    def _generated(self, step: Step, operands: Sequence[Buffer], output: Buffer) -> Command:
        kernel = self._kernels.get(step.spec["symbol"])
        if kernel is None:
            raise ArtefactError(f"the plan needs the kernel {step.spec['symbol']!r}, and the artefact has none", where=step.name)
        code = self.driver.load(step.spec["symbol"], kernel)
        named = {f"in{i}": buffer for i, buffer in enumerate(operands)} | {kernel_file.OUTPUT: output}
        self._workspace_bytes = max(self._workspace_bytes, kernel.scratch_bytes)
        scratch = Buffer("float32", (kernel.scratch_bytes // 4,), (1,), "arena")

        def run(stream: int) -> None:
            locations = {name: self.location(buffer) for name, buffer in named.items()}
            locations[kernel_file.SCRATCH] = Location(scratch, self._workspaces[stream])
            for launch in kernel.launches:
                self.driver.launch(code, launch, [locations[name] for name in launch.parameters], launch.written, stream)

        return run

    def _library(self, index: int, operands: Sequence[Buffer], output: Buffer) -> Command:
        step, driver = self.plan.steps[index], self.driver
        packed = with_packed(step.spec, operands)
        call = driver.plan(step.kind, step.spec, packed, output)
        if call.unavailable_plan:
            self.implementations[index] = f"{step.kind}: {call.unavailable_plan}: the library's favourite runs"
        self._workspace_bytes = max(self._workspace_bytes, call.workspace_bytes)
        moved = {position: _packed_name(operands[position]) for position in _packed_positions(step)}
        staged = {buffer: self._staged(buffer) for buffer in (*packed, output) if step.kind == CUDNN_STEP and not _is_aligned(buffer)}

        def run(stream: int) -> None:
            constants = self._memory.constants
            locations = [
                Location(buffer, constants[moved[i]]) if i in moved else self.location(buffer) for i, buffer in enumerate(packed)
            ]
            for buffer in dict.fromkeys(packed):
                if buffer in staged:
                    driver.copy(self.location(buffer), staged[buffer], stream)
            locations = [staged.get(location.buffer, location) for location in locations]
            result = self.location(output)
            driver.call(call, locations, staged.get(output, result), self._workspaces[stream], self._workspace_bytes, stream)
            if output in staged:
                driver.copy(staged[output], result, stream)

        return run

    def _staged(self, buffer: Buffer) -> Location:
        """Return separate memory for an operand that a library does not accept where it lies."""
        first, last = byte_range(buffer)
        address = self.driver.allocate(last - first, "an aligned copy of an operand")
        return Location(replace(buffer, offset=0), address)

    def location(self, buffer: Buffer) -> Location:
        """Return the address of a buffer."""
        match buffer.area:
            case "arena":
                base = self._memory.arena
            case "weight":
                base = self._memory.constants[buffer.key]
            case _:
                base = self._memory.ports[self._areas.numbers[buffer.area, buffer.key]]
        return Location(buffer, base + buffer.offset * numpy_dtype(buffer.dtype).itemsize)

    def _outputs_of(self, step: Step) -> list[int]:
        written = [self.plan.buffers[i] for i in step.outputs]
        return [self._areas.numbers["output", buffer.key] for buffer in written if buffer.area == "output"]

    def bind(self, areas: Sequence[np.ndarray]) -> None:
        """Upload inputs; no work on the last ones is pending, because outputs were waited for."""
        self._bound = list(areas)
        for number, (area, _) in enumerate(self._areas.numbers):
            if area == "input":
                self.driver.upload(self._memory.ports[number], np.ascontiguousarray(self._bound[number]).reshape(-1), COPIES)
        self.driver.wait(COMPUTE, self.driver.record(COPIES))

    def launch(self, first: int, last: int) -> None:
        graph = self._graphs.get((first, last))
        if graph is None and (first, last) in self._seen:
            self.driver.begin_capture(COMPUTE)
            try:
                self._run(first, last)
            finally:
                graph = self._graphs[first, last] = self.driver.end_capture(COMPUTE)
        if graph is None:
            self._seen.add((first, last))
            self._run(first, last)
        else:
            self.driver.replay(graph, COMPUTE)
        for index in range(first, last):
            self._fresh.update(self._written.get(index, ()))

    def _run(self, first: int, last: int) -> None:
        """Enqueue steps, on as many streams as the plan allows: the others are forked from the computing one, and joined again."""
        driver, planned = self.driver, self._schedules.get((first, last))
        if planned is None:
            planned = self._schedules[first, last] = schedule(self.plan, first, last, self._streams)
        start = driver.record(COMPUTE) if len(planned.streams) > 1 else None
        events: dict[int, Any] = {}
        for each in planned.placed:
            if each.is_first:
                driver.wait(each.stream, start)
            for awaited in each.waits:
                driver.wait(each.stream, events[awaited])
            self._commands[each.step](each.stream)
            if each.step in planned.awaited:
                events[each.step] = driver.record(each.stream)
        for awaited in planned.joined:
            driver.wait(COMPUTE, events[awaited])

    def array(self, name: str) -> Any:
        """Return an input or output as an array on the device: ``torch.from_dlpack(program.array("x")).copy_(x)`` fills an input."""
        ports = {port.name: port for port in (*self.plan.inputs, *self.plan.outputs)}
        buffer = self.plan.buffers[ports[name].buffer]
        if buffer.area not in ("input", "output"):
            raise ArtefactError(f"{name!r} does not lie on the device by itself", where=str(buffer))
        return self.driver.array(self.location(buffer))

    def replay(self) -> None:
        """Run all steps on the contents of :meth:`array` of each input, and leave the outputs there; nothing is copied."""
        if len(self._commands) != len(self.plan.steps):
            raise ArtefactError("some steps run on the host: use Session.run", fix="optimise the model again, or use Session.run")
        self.launch(0, len(self.plan.steps))
        self._fresh.clear()
        self.driver.synchronise(COMPUTE)

    def synchronise(self) -> None:
        if self._fresh:
            self.driver.wait(COPIES, self.driver.record(COMPUTE))
            for number in sorted(self._fresh):
                target = self._bound[number].reshape(-1).view(np.uint8)[: self._areas.sizes_bytes[number]]
                self.driver.download(target, self._memory.ports[number], COPIES)
            self._fresh.clear()
            self.driver.synchronise(COPIES)
        self.driver.synchronise(COMPUTE)

    def read(self, buffer: Buffer) -> np.ndarray:
        dtype = numpy_dtype(buffer.dtype)
        first, last = extent(buffer)
        flat = np.empty(last - first, dtype)
        if flat.size:
            self.copies["to_host"] += 1
            location = self.location(buffer)
            self.driver.download(flat.view(np.uint8), location.address + (first - buffer.offset) * dtype.itemsize, COMPUTE)
            self.driver.synchronise(COMPUTE)
        return window_over(buffer, flat, buffer.offset - first)

    def write(self, buffer: Buffer, value: np.ndarray) -> None:
        self.copies["to_device"] += 1
        if not is_contiguous(buffer):
            raise ArtefactError("a step of the host writes into a window with gaps", where=str(buffer), fix="optimise the model again")
        if value.size:
            self.driver.upload(self.location(buffer).address, np.ascontiguousarray(value).reshape(-1), COMPUTE)
        if buffer.area == "output":
            self._fresh.add(self._areas.numbers["output", buffer.key])

    def time(self, count: int, *, evict: bool, weights_from_memory: bool) -> list[int]:
        """Return the nanoseconds of each of ``count`` runs, by events, in a graph that is replayed.

        With ``evict``, each replay runs the program on several copies of its memory in turn, so many that the data of one copy in the GPU's
        cache are overwritten before they are read again. The time of a run is the mean of these.
        """
        if not evict:
            steps = len(self.plan.steps)
            for _ in range(2):
                self.launch(0, steps)
            return [self._timed(0, steps) for _ in range(count)]
        if self._rotated is None:
            self._rotated = self._captured_in_turn()
            for _ in range(WARM_UP_REPLAYS):
                self.driver.replay(self._rotated[0], COMPUTE)
        graph, runs = self._rotated
        return [round(self._elapsed_ns(partial(self.driver.replay, graph, COMPUTE)) / runs) for _ in range(count)]

    def _captured_in_turn(self) -> tuple[object, int]:
        """Capture the program on copies of its memory in turn: at least two, at most ``MOST_COPIES``, twice the cache if that suffices."""
        steps, first = len(self.plan.steps), self._memory
        size_bytes = self.plan.arena_bytes + sum(self._areas.sizes_bytes) + self._constants_bytes
        copies = [first]
        for _ in range(1, max(2, min(MOST_COPIES, -(-2 * self.driver.l2_bytes // max(1, size_bytes))))):
            copies.append(self._copy(first))
        self._run(0, steps)  # libraries initialise themselves before anything is captured
        self.driver.synchronise(COMPUTE)
        self.driver.begin_capture(COMPUTE)
        try:
            for self._memory in copies:
                self._run(0, steps)
        finally:
            self._memory = first
            graph = self.driver.end_capture(COMPUTE)
        return graph, len(copies)

    def _copy(self, memory: _Memory) -> _Memory:
        """Return new memory with the same inputs and constants."""
        driver = self.driver

        def copied(address: int, size_bytes: int, purpose: str) -> int:
            new = driver.allocate(size_bytes, purpose)
            if size_bytes:
                whole = Buffer("uint8", (size_bytes,), (1,), "arena")
                driver.copy(Location(whole, address), Location(whole, new), COMPUTE)
            return new

        ports = [copied(address, size, "a copy of a port") for address, size in zip(memory.ports, self._areas.sizes_bytes, strict=True)]
        base = min(memory.constants.values(), default=0)
        moved = copied(base, self._constants_bytes, "a copy of the weights") - base
        constants = {name: address + moved for name, address in memory.constants.items()}
        return _Memory(driver.allocate(self.plan.arena_bytes, "another arena"), ports, constants)

    def profile(self, count: int) -> list[list[int]]:
        """Return the nanoseconds of each step, ``count`` times: the mean of its consecutive launches in one graph.

        A step that overwrites its operand does so again and again, so that the memory's contents are useless afterwards.
        """
        graphs = [self._repeated(index) for index in range(len(self.plan.steps))]
        return [
            [round(self._elapsed_ns(partial(self.driver.replay, graph, COMPUTE)) / REPEATED_LAUNCHES) for graph in graphs]
            for _ in range(count)
        ]

    def _repeated(self, index: int) -> object:
        self._run(index, index + 1)  # the library initialises itself before anything is captured
        self.driver.synchronise(COMPUTE)
        self.driver.begin_capture(COMPUTE)
        try:
            for _ in range(REPEATED_LAUNCHES):
                self._run(index, index + 1)
        finally:
            graph = self.driver.end_capture(COMPUTE)
        return graph

    def _timed(self, first: int, last: int) -> int:
        return self._elapsed_ns(partial(self.launch, first, last))

    def _elapsed_ns(self, launch: Callable[[], None]) -> int:
        start = self.driver.record(COMPUTE)
        launch()
        end = self.driver.record(COMPUTE)
        self.driver.synchronise(COMPUTE)
        return round(1e3 * self.driver.elapsed_us(start, end))

    def library_plans(self) -> list[EnginePlan]:
        """List the plans that the device's libraries have for a program of one call, their favourite first."""
        if len(self.plan.steps) != 1 or self.plan.steps[0].kind not in LIBRARY_STEPS:
            return []
        (step,) = self.plan.steps
        operands = with_packed(step.spec, [self.plan.buffers[i] for i in step.inputs])
        return list(self.driver.plans(step.kind, step.spec, operands, self.plan.buffers[step.outputs[0]]))

    def close(self) -> None:
        self._commands.clear()
        self._graphs.clear()
        self._rotated = None
        self.driver.close()


def planned_as(step: Step, text: str) -> Step:
    """Return a library's step with one of the library's plans."""
    return replace(step, spec={**step.spec, **EnginePlan.parse(text).spec}) if step.kind in LIBRARY_STEPS else step


def _is_aligned(buffer: Buffer) -> bool:
    return alignment_bytes(buffer) >= ALIGNED_BYTES


def _packed_positions(step: Step) -> list[int]:
    return [step.spec["arguments"][role] for role in step.spec.get("packed", ())] if step.kind in LIBRARY_STEPS else []


def _packed_name(buffer: Buffer) -> str:
    return f"{buffer.key} {buffer.offset} {buffer.shape} channels last"
