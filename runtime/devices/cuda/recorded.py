"""CUDA without a GPU: executes a program's work, and refuses what would be an error on a GPU. It never gives a time.

Memory is the host's, with gaps between allocations. Generated kernels run as their own text (:mod:`runtime.devices.cuda.shim`), and calls
of libraries by the meanings of their recipes. All work of a stream is recorded with the memory that it reads and writes: two accesses of
the same bytes, one of them a write, must be ordered by a stream, an event or a wait of the host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NoReturn

import numpy as np

from runtime.devices.cuda import cublas, cudnn
from runtime.devices.cuda.driver import ALIGNMENT_BYTES, STREAMS, Location
from runtime.devices.cuda.gpus import MOST_BLOCK, MOST_BLOCK_THREADS, MOST_GRID, Gpu
from runtime.devices.cuda.kernels import Kernel, Launch
from runtime.devices.cuda.meaning import evaluate_call
from runtime.devices.cuda.shim import HostModule, Order, compile_for_host
from runtime.dtypes import numpy_dtype
from runtime.errors import ArtefactError, KernelError
from runtime.plan import Buffer, Plan
from runtime.storage import byte_range, extent, window_over

GAP_BYTES = 1 << 20
"""The gap between two allocations, in bytes."""
REGISTERS = 65536
"""The most registers of a block, on all devices that we compile for."""
UNWRITTEN = 0xFF
"""The value of every byte that was never written: NaN in all formats of floating point."""


def refuse(what: str, where: str = "", fix: str = "") -> NoReturn:
    """Raise an error for work that would be an error on a GPU."""
    raise KernelError(f"recorded device: {what}", where=where, fix=fix)


@dataclass
class _Memory:
    label: str
    start: int
    data: np.ndarray
    written: np.ndarray
    """Whether each byte was ever written."""


@dataclass(frozen=True)
class _Access:
    start: int
    end: int
    writes: bool
    stream: int
    time: int
    label: str


@dataclass(frozen=True)
class Event:
    """The work that every stream had done when it was recorded; ``graph``: the one in which it was captured."""

    clock: tuple[int, ...]
    graph: Graph | None = None


@dataclass
class _Work:
    """A piece of a stream's work: the memory that it reads and writes (address, bytes), and the function that does it."""

    label: str
    reads: list[tuple[int, int]]
    writes: list[tuple[int, int]]
    run: Callable[[], None]


@dataclass(eq=False)
class Graph:
    """Captured work, from one stream on: work and waits of streams, and the clocks that order these."""

    origin: int
    clocks: dict[int, list[int]]
    """For each stream that takes part, how much captured work of each stream precedes its next."""
    works: list[tuple[int, _Work | tuple[int, ...]]] = field(default_factory=list)
    """Streams, each with its work or the clock of an event that it waits for."""


@dataclass(frozen=True)
class RecordedCall:
    """A library's call as its recipe."""

    kind: str
    spec: Mapping[str, Any]
    workspace_bytes: int
    unavailable_plan: str = ""


@cache
def _host_module(text: str) -> HostModule:
    return compile_for_host(text)


class RecordedDriver:
    """A driver of a described GPU; ``order`` is the order in which threads and blocks run."""

    def __init__(self, gpu: Gpu, order: Order = "ascending") -> None:
        self.gpu, self.order = gpu, order
        self.launches = 0
        self._memories: list[_Memory] = []
        self._next_address = GAP_BYTES
        self._total_bytes = 0
        self._clocks = [[0] * len(STREAMS) for _ in STREAMS]
        self._host = [0] * len(STREAMS)
        self._accesses: list[_Access] = []
        self._captured: Graph | None = None

    @property
    def l2_bytes(self) -> int:
        return self.gpu.l2_bytes

    def allocate(self, size_bytes: int, purpose: str) -> int:
        self._refuse_captured("an allocation")
        self._total_bytes += size_bytes
        if self._total_bytes > self.gpu.memory_bytes:
            refuse(f"{self._total_bytes} bytes are more than the {self.gpu.memory_bytes} of a {self.gpu.full_name}", purpose)
        memory = _Memory(purpose, self._next_address, np.full(size_bytes, UNWRITTEN, np.uint8), np.zeros(size_bytes, bool))
        self._next_address += -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES + GAP_BYTES
        self._memories.append(memory)
        return memory.start

    def upload(self, address: int, host: np.ndarray, stream: int) -> None:
        self._refuse_captured("a copy from the host's own memory")
        data = host.view(np.uint8).copy()
        if data.size:
            target = self._bytes(address, data.size, "an upload")
            self._give(stream, _Work("upload", [], [(address, data.size)], lambda: np.copyto(target, data)))

    def download(self, host: np.ndarray, address: int, stream: int) -> None:
        self._refuse_captured("a copy to the host's own memory")
        if host.size:
            source = self._bytes(address, host.size, "a download")
            self._give(stream, _Work("download", [(address, host.size)], [], lambda: np.copyto(host, source)))

    def load(self, name: str, kernel: Kernel) -> HostModule:
        self._refuse_captured("loading code")
        if kernel.architecture not in ("", self.gpu.architecture):
            what = f"code for {kernel.architecture} does not run on a {self.gpu.full_name} ({self.gpu.architecture})"
            refuse(what, name, f"optimise the model with --target cuda:{self.gpu.name}")
        for launch in kernel.launches:
            self._check_launch(launch, kernel.registers)
        return _host_module(kernel.text)

    def _check_launch(self, launch: Launch, registers: int) -> None:
        if launch.threads > MOST_BLOCK_THREADS or any(size > most for size, most in zip(launch.block, MOST_BLOCK, strict=True)):
            refuse(f"a block of {launch.block} threads is more than {MOST_BLOCK_THREADS} threads or {MOST_BLOCK}", launch.symbol)
        if min(*launch.grid, *launch.block) < 1 or any(size > most for size, most in zip(launch.grid, MOST_GRID, strict=True)):
            refuse(f"a grid of {launch.grid} blocks is empty or more than {MOST_GRID}", launch.symbol)
        if launch.shared_bytes > self.gpu.shared_bytes:
            refuse(f"{launch.shared_bytes} bytes of shared memory are more than {self.gpu.shared_bytes}", launch.symbol)
        if registers * launch.threads > REGISTERS:
            refuse(f"{registers} registers of {launch.threads} threads are more than {REGISTERS}", launch.symbol)

    def plan(self, kind: str, spec: Mapping[str, Any], operands: Sequence[Buffer], output: Buffer) -> RecordedCall:
        self._refuse_captured("planning a library's call")
        if kind == cublas.CUBLAS_STEP:
            cublas.product_of(spec, operands, output)
        return RecordedCall(kind, spec, int(spec["workspace_bytes"]))

    def plans(self, kind: str, spec: Mapping[str, Any], operands: Sequence[Buffer], output: Buffer) -> tuple[cudnn.EnginePlan, ...]:
        """List cuDNN's plans for the described GPU, if cuDNN is installed; cuBLASLt's heuristics answer only on a device."""
        if kind == cublas.CUBLAS_STEP or not cudnn.is_installed():
            return ()
        plans = cudnn.engine_plans(spec, operands, output, self.gpu, spec["precision"])
        return () if isinstance(plans, str) else tuple(plan for plan in plans if plan.workspace_bytes <= cudnn.WORKSPACE_BYTES)

    def launch(self, code: HostModule, launch: Launch, arguments: Sequence[Location], written: int, stream: int) -> None:
        self._check_launch(launch, 0)
        arrays = [self._flat(location) for location in arguments]

        def run() -> None:
            self.launches += 1
            code.launch(launch.symbol, launch.grid, launch.block, launch.shared_bytes, arrays, self.order)

        reads = [_span(location) for i, location in enumerate(arguments) if i != written]
        self._give(stream, _Work(launch.symbol, reads, [_span(arguments[written])], run))

    def call(
        self, call: RecordedCall, operands: Sequence[Location], output: Location, workspace: int, workspace_bytes: int, stream: int
    ) -> None:
        if call.workspace_bytes > workspace_bytes:
            refuse(f"a call needs {call.workspace_bytes} bytes of workspace and has {workspace_bytes}", call.kind)
        for location in (*operands, output):
            if call.kind == cudnn.CUDNN_STEP and location.address % cudnn.ALIGNMENT_BYTES:
                refuse(f"cuDNN takes addresses that are multiples of {cudnn.ALIGNMENT_BYTES}, not {location.address}", str(location.buffer))
        arrays, result = [self._view(location) for location in operands], self._view(output)
        scratch = self._bytes(workspace, call.workspace_bytes, "workspace") if call.workspace_bytes else np.empty(0, np.uint8)

        def run() -> None:
            self.launches += 1
            value = evaluate_call(call.spec, arrays, result.shape)
            scratch.fill(UNWRITTEN)
            np.copyto(result, value)

        writes = [_span(output), *([(workspace, call.workspace_bytes)] if call.workspace_bytes else [])]
        self._give(stream, _Work(f"{call.kind}.{call.spec['primitive']}", [_span(each) for each in operands], writes, run))

    def copy(self, source: Location, target: Location, stream: int) -> None:
        start, end = self._view(source), self._view(target)
        self._give(stream, _Work("copy", [_span(source)], [_span(target)], lambda: np.copyto(end, start.copy())))

    def array(self, location: Location) -> np.ndarray:
        memory, (start, size_bytes) = self._memory(location.address, 0, "an array"), _span(location)
        memory.written[start - memory.start : start - memory.start + size_bytes] = True
        return self._view(location)

    def record(self, stream: int) -> Event:
        if self._captured is not None and stream in self._captured.clocks:
            return Event(tuple(self._captured.clocks[stream]), self._captured)
        return Event(tuple(self._clocks[stream]))

    def wait(self, stream: int, event: Event) -> None:
        captured = self._captured
        if event.graph is not None and event.graph is not captured:
            refuse("a wait for an event of a capture that is over")
        if captured is not None and event.graph is not None:
            clock = captured.clocks.setdefault(stream, [0] * len(STREAMS))  # the stream is captured from now on
            captured.clocks[stream] = _later(clock, event.clock)
            captured.works.append((stream, event.clock))
            return
        if captured is not None and stream in captured.clocks:
            refuse("a stream that is captured waits for an event that is not")
        self._clocks[stream] = _later(self._clocks[stream], event.clock)

    def begin_capture(self, stream: int) -> None:
        self._refuse_captured("another capture")
        self._captured = Graph(stream, {stream: [0] * len(STREAMS)})

    def end_capture(self, stream: int) -> Graph:
        graph, self._captured = self._captured, None
        if graph is None:
            refuse("a capture ends that was not begun")
        if stream != graph.origin:
            refuse("a capture ends on another stream than it was begun on")
        if any(clock[other] > graph.clocks[stream][other] for other, clock in graph.clocks.items()):
            refuse("a capture ends before its stream has waited for all others that are captured")
        return graph

    def replay(self, graph: Graph, stream: int) -> None:
        """Give a graph's work to streams of the same numbers, after all work of ``stream`` so far."""
        self._refuse_captured("launching a graph")
        lanes = {each: stream if each == graph.origin else each for each in graph.clocks}
        for lane in lanes.values():
            self._clocks[lane] = _later(self._clocks[lane], self._clocks[stream])
        begun = {each: self._clocks[lane][lane] for each, lane in lanes.items()}
        for each, work in graph.works:
            if isinstance(work, _Work):
                self._give(lanes[each], work)
                continue
            awaited = [0] * len(STREAMS)
            for other, lane in lanes.items():
                awaited[lane] = begun[other] + work[other]
            self._clocks[lanes[each]] = _later(self._clocks[lanes[each]], awaited)

    def synchronise(self, stream: int) -> None:
        self._refuse_captured("waiting for a stream")
        self._host = _later(self._host, self._clocks[stream])
        self._accesses = [each for each in self._accesses if each.time > self._host[each.stream]]

    def elapsed_us(self, start: Event, end: Event) -> float:
        refuse("nothing is timed here", fix="run the program where a GPU is")

    def close(self) -> None:
        self._memories.clear()

    def _refuse_captured(self, action: str) -> None:
        if self._captured is not None:
            refuse(f"{action} is forbidden while a stream is captured")

    def _give(self, stream: int, work: _Work) -> None:
        """Run work, or record it if the stream is captured."""
        if self._captured is not None and stream in self._captured.clocks:
            self._captured.clocks[stream][stream] += 1
            self._captured.works.append((stream, work))
            return
        # Work that the host waited for precedes all that it requests next.
        self._clocks[stream] = _later(self._clocks[stream], self._host)
        self._clocks[stream][stream] += 1
        for writes, spans in ((False, work.reads), (True, work.writes)):
            for start, size_bytes in spans:
                self._access(_Access(start, start + size_bytes, writes, stream, self._clocks[stream][stream], work.label))
        work.run()

    def _access(self, new: _Access) -> None:
        memory = self._memory(new.start, new.end - new.start, new.label)
        part = slice(new.start - memory.start, new.end - memory.start)
        if new.writes:
            memory.written[part] = True
        for old in self._accesses:
            overlaps = old.start < new.end and new.start < old.end and (old.writes or new.writes)
            if overlaps and old.stream != new.stream and old.time > self._clocks[new.stream][old.stream]:
                refuse(f"{new.label} and {old.label} use the same bytes of {memory.label} and nothing orders them")
        self._accesses.append(new)

    def _memory(self, address: int, size_bytes: int, access: str) -> _Memory:
        for memory in self._memories:
            if memory.start <= address and address + size_bytes <= memory.start + memory.data.size:
                return memory
        refuse(f"bytes {address} to {address + size_bytes} belong to no allocation", access)

    def _bytes(self, address: int, size_bytes: int, access: str) -> np.ndarray:
        memory = self._memory(address, size_bytes, access)
        return memory.data[address - memory.start : address - memory.start + size_bytes]

    def _view(self, location: Location) -> np.ndarray:
        """Return a window's elements."""
        buffer = location.buffer
        data = self._bytes(*_span(location), "a window") if 0 not in buffer.shape else np.empty(0, np.uint8)
        return window_over(buffer, data, buffer.offset - extent(buffer)[0])

    def _flat(self, location: Location) -> np.ndarray:
        """Return the elements from a window's first to its last in memory, as a kernel's pointer addresses them."""
        start, size_bytes = _span(location)
        return self._bytes(start, size_bytes, "an argument").view(numpy_dtype(location.buffer.dtype))


def _later(clock: Sequence[int], other: Sequence[int]) -> list[int]:
    return [max(pair) for pair in zip(clock, other, strict=True)]


def _span(location: Location) -> tuple[int, int]:
    """Return the address of a window's first byte, and the number of bytes up to its last."""
    first, last = byte_range(location.buffer)
    return location.address + first - location.buffer.offset * numpy_dtype(location.buffer.dtype).itemsize, last - first


@dataclass(frozen=True)
class _Write:
    step: int
    start: int
    end: int


def check_live_ranges(plan: Plan) -> None:
    """Refuse a plan whose steps read arena memory that was not written yet, or values of which a part was overwritten.

    A value that is overwritten as a whole is another value from then on; reading the wrong one shows in the results.
    """
    writes: list[_Write] = []
    for number, step in enumerate(plan.steps):
        for index in step.inputs:
            if _is_in_arena(plan.buffers[index]):
                _check_read(plan, number, plan.buffers[index], writes)
        writes += [_Write(number, *byte_range(plan.buffers[i])) for i in step.outputs if _is_in_arena(plan.buffers[i])]


def _is_in_arena(buffer: Buffer) -> bool:
    return buffer.area == "arena" and 0 not in buffer.shape


def _check_read(plan: Plan, number: int, buffer: Buffer, writes: Sequence[_Write]) -> None:
    where, fix = f"step {number}, {plan.steps[number].name}", "optimise the model again"
    unseen = [byte_range(buffer)]
    newer: list[_Write] = []
    for write in reversed(writes):
        if any(a < write.end and write.start < b for a, b in unseen):
            over = next((each for each in newer if each.start < write.end and write.start < each.end), None)
            if over is not None:
                what = f"values overlap in the arena: of what step {write.step} wrote, step {over.step} wrote over a part"
                raise ArtefactError(f"{what}, and the rest is read", where=where, fix=fix)
            unseen = _without(unseen, write)
        newer.append(write)
        if not unseen:
            return
    raise ArtefactError("the order is wrong: a step reads from the arena what no step before it wrote", where=where, fix=fix)


def _without(ranges: Sequence[tuple[int, int]], write: _Write) -> list[tuple[int, int]]:
    parts = [part for a, b in ranges for part in ((a, min(b, write.start)), (max(a, write.end), b))]
    return [(a, b) for a, b in parts if a < b]
