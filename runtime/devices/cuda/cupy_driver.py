"""CUDA by CuPy: the GPU of this machine. It ran on an H100, as bench/results/cuda_contact.md says.

CuPy launches kernels, and compiles them only if the artefact has no code for this device. cuDNN's plans are rebuilt by engine and knobs,
and cuBLASLt's kernels are chosen by its heuristics.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from runtime.devices.cuda import cublas, cudnn
from runtime.devices.cuda.driver import STREAMS, LibraryCall, Location
from runtime.devices.cuda.gpus import STATIC_SHARED_BYTES
from runtime.devices.cuda.kernels import Kernel, Launch
from runtime.dtypes import numpy_dtype
from runtime.errors import ArtefactError, ExecutionError, KernelError, LibraryMissing
from runtime.plan import Buffer
from runtime.storage import extent

WITHOUT = "--target cuda:h100 optimises for a GPU that is elsewhere; runtime.run --on cuda:h100 executes a program without one"


def library() -> Any:
    """Return CuPy if there is a device; every error says what is installed and what is missing."""
    try:
        import cupy
    except (ImportError, OSError) as error:
        raise LibraryMissing(f"CuPy cannot be loaded: {error}", fix=f"pip install 'einsat[cuda]'; {WITHOUT}") from error
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:  # CuPy's own class is known only where it can be imported
        versions = f"CuPy {cupy.__version__}, CUDA runtime {cupy.cuda.runtime.runtimeGetVersion()}"
        raise ExecutionError(f"there is no CUDA driver that can be used ({versions}): {error}", fix=WITHOUT) from error
    if count == 0:
        raise ExecutionError(f"CuPy {cupy.__version__} finds no CUDA device", fix=WITHOUT)
    return cupy


def architecture() -> str:
    """Return the architecture of code for this machine's GPU: ``sm_90``."""
    return f"sm_{library().cuda.Device().compute_capability}"


def device_name() -> str:
    """Return the name of this machine's GPU, with the versions of driver and libraries, on which its speed depends."""
    cupy = library()
    name = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["name"].decode()
    return f"{name}, driver {cupy.cuda.runtime.driverGetVersion()}, CuPy {cupy.__version__}"


def library_versions() -> list[str]:
    """Return the versions of the libraries whose kernels are timed, if they can be loaded."""
    versions = []
    with suppress(LibraryMissing, RuntimeError):
        versions.append(f"cuDNN {cudnn.library().backend_version()}")
    with suppress(LibraryMissing):
        versions.append(f"cuBLASLt {int(cublas.library().cublasLtGetVersion())}")
    return versions


@dataclass(frozen=True)
class _Code:
    """A generated kernel's functions, by symbol."""

    functions: Mapping[str, Any]


@dataclass
class _Call:
    """A library's call: ``run`` takes addresses by role, a workspace, its size and the stream."""

    workspace_bytes: int
    names: Callable[[Sequence[Location], Location], Mapping[str, int]]
    run: Callable[[Mapping[str, int], int, int, int], None]
    unavailable_plan: str = ""


class CupyDriver:
    """A driver of this machine's GPU."""

    def __init__(self) -> None:
        self._cupy = library()
        self._streams = [self._cupy.cuda.Stream(non_blocking=True) for _ in STREAMS]
        self._memories: list[Any] = []
        self._kept: dict[int, list[np.ndarray]] = {stream: [] for stream in STREAMS}
        """Host memory that pending copies read, by stream."""
        self._cudnn_handle: Any = None
        self._cublas_handle: Any = None

    @property
    def l2_bytes(self) -> int:
        return int(self._cupy.cuda.Device().attributes["L2CacheSize"])

    def allocate(self, size_bytes: int, purpose: str) -> int:
        try:
            memory = self._cupy.cuda.Memory(max(1, size_bytes))
        except Exception as error:  # out of memory has two classes
            free, total = self._cupy.cuda.runtime.memGetInfo()
            stated = f"{size_bytes} bytes for {purpose}: {free} of {total} bytes are free"
            raise ExecutionError(f"the GPU has no {stated}", fix="end what else uses it, or optimise for a smaller batch") from error
        self._memories.append(memory)
        return int(memory.ptr)

    def upload(self, address: int, host: np.ndarray, stream: int) -> None:
        if host.size:
            self._kept[stream].append(host)
            runtime = self._cupy.cuda.runtime
            runtime.memcpyAsync(address, host.ctypes.data, host.nbytes, runtime.memcpyHostToDevice, self._streams[stream].ptr)

    def download(self, host: np.ndarray, address: int, stream: int) -> None:
        if host.size:
            runtime = self._cupy.cuda.runtime
            runtime.memcpyAsync(host.ctypes.data, address, host.nbytes, runtime.memcpyDeviceToHost, self._streams[stream].ptr)

    def load(self, name: str, kernel: Kernel) -> _Code:
        present = architecture()
        if kernel.cubin is None:
            module = self._cupy.RawModule(code=kernel.text, options=("--std=c++17",))
        elif kernel.architecture != present:
            what = f"the program has code for {kernel.architecture}, and this GPU is {device_name()} ({present})"
            raise ArtefactError(what, where=name, fix="optimise the model with --target for this kind of GPU")
        else:
            with tempfile.TemporaryDirectory(prefix="einsat-") as folder:
                path = Path(folder) / "kernel.cubin"
                path.write_bytes(kernel.cubin)
                module = self._cupy.RawModule(path=str(path))
                functions = self._functions(module, kernel)
            return _Code(functions)
        return _Code(self._functions(module, kernel))

    @staticmethod
    def _functions(module: Any, kernel: Kernel) -> dict[str, Any]:
        """Load all functions now, because nothing may be loaded while a stream is captured."""
        functions = {}
        for launch in kernel.launches:
            functions[launch.symbol] = module.get_function(launch.symbol)
            functions[launch.symbol].compile()
            if launch.shared_bytes > STATIC_SHARED_BYTES:
                functions[launch.symbol].max_dynamic_shared_size_bytes = launch.shared_bytes
        return functions

    def plan(self, kind: str, spec: Mapping[str, Any], operands: Sequence[Buffer], output: Buffer) -> LibraryCall:
        def names(locations: Sequence[Location], result: Location) -> Mapping[str, int]:
            by_role = {**cudnn.roles(spec, locations), "dst": result}
            return {role: location.address for role, location in by_role.items()}

        if kind == cublas.CUBLAS_STEP:
            aligned = cublas.alignments(spec, operands, output)
            handle, product = self._cublas(), cublas.Call(cublas.product_of(spec, operands, output), aligned)
            needed = product.choose(handle, spec)
            return _Call(needed, names, lambda addresses, workspace, size, stream: product.run(handle, addresses, workspace, size, stream))
        graph = cudnn.Graph(spec, cudnn.roles(spec, operands), output, handle=self._cudnn())
        needed = graph.build(spec, spec["precision"])

        def run(addresses: Mapping[str, int], workspace: int, size: int, stream: int) -> None:
            cudnn.library().set_stream(handle=self._cudnn(), stream=stream)
            graph.run(addresses, workspace)

        return _Call(needed, names, run, graph.unavailable_plan)

    def plans(self, kind: str, spec: Mapping[str, Any], operands: Sequence[Buffer], output: Buffer) -> list[cudnn.EnginePlan]:
        if kind == cublas.CUBLAS_STEP:
            product = cublas.Call(cublas.product_of(spec, operands, output), cublas.alignments(spec, operands, output))
            try:
                return product.plans(self._cublas(), cublas.WORKSPACE_BYTES)
            finally:
                product.close()
        listed = cudnn.Graph(spec, cudnn.roles(spec, operands), output, handle=self._cudnn()).plans(spec["precision"])
        return [plan for plan in listed if plan.workspace_bytes <= cudnn.WORKSPACE_BYTES]

    def _cublas(self) -> Any:
        if self._cublas_handle is None:
            self._cublas_handle = cublas.new_handle()
        return self._cublas_handle

    def _cudnn(self) -> Any:
        """Return the library's handle; each call binds it to its stream."""
        if self._cudnn_handle is None:
            self._cudnn_handle = cudnn.library().create_handle()
        return self._cudnn_handle

    def launch(self, code: _Code, launch: Launch, arguments: Sequence[Location], written: int, stream: int) -> None:
        pointers = tuple(np.uint64(location.address) for location in arguments)
        with self._streams[stream]:
            code.functions[launch.symbol](launch.grid, launch.block, pointers, shared_mem=launch.shared_bytes)

    def call(self, call: _Call, operands: Sequence[Location], output: Location, workspace: int, workspace_bytes: int, stream: int) -> None:
        call.run(call.names(operands, output), workspace, workspace_bytes, self._streams[stream].ptr)

    def copy(self, source: Location, target: Location, stream: int) -> None:
        with self._streams[stream]:
            self._cupy.copyto(self.array(target), self.array(source))

    def array(self, location: Location) -> Any:
        dtype = numpy_dtype(location.buffer.dtype)
        first, last = extent(location.buffer)
        start = location.address + (first - location.buffer.offset) * dtype.itemsize
        memory = self._cupy.cuda.UnownedMemory(start, max(1, (last - first) * dtype.itemsize), self)
        pointer = self._cupy.cuda.MemoryPointer(memory, location.address - start)
        strides = tuple(stride * dtype.itemsize for stride in location.buffer.strides)
        return self._cupy.ndarray(location.buffer.shape, dtype, pointer, strides)

    def record(self, stream: int) -> Any:
        return self._streams[stream].record()

    def wait(self, stream: int, event: Any) -> None:
        self._streams[stream].wait_event(event)

    def begin_capture(self, stream: int) -> None:
        self._streams[stream].begin_capture()

    def end_capture(self, stream: int) -> Any:
        return self._streams[stream].end_capture()

    def replay(self, graph: Any, stream: int) -> None:
        graph.launch(self._streams[stream])

    def synchronise(self, stream: int) -> None:
        try:
            self._streams[stream].synchronize()
        except Exception as error:  # CuPy's own class is known only where it can be imported
            raise KernelError(f"the GPU reports an error: {error}", fix="run it again with CUDA_LAUNCH_BLOCKING=1") from error
        self._kept[stream].clear()

    def elapsed_us(self, start: Any, end: Any) -> float:
        return 1e3 * float(self._cupy.cuda.get_elapsed_time(start, end))

    def close(self) -> None:
        if self._cudnn_handle is not None:
            cudnn.library().destroy_handle(self._cudnn_handle)
            self._cudnn_handle = None
        self._memories.clear()
