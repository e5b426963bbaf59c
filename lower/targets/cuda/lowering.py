"""How programs become plans for CUDA: generated kernels, cuDNN and cuBLASLt; a target for each kind of GPU that is described."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import ClassVar

from egraph.errors import LowerError
from egraph.tensor import Implementation, Node, Target, placeholders
from lower.calls.tiles import Matcher, library_tiles
from lower.candidates.eoperator_tiles import eoperator_tiles
from lower.candidates.tile import Tile, Tiling
from lower.eoperator import KernelRequest
from lower.eoperator.request import may_overwrite
from lower.targets import Compiler, Generator, Library, Lowering
from lower.targets.cuda import attention
from lower.targets.cuda.costs import GpuSpeed
from lower.targets.cuda.generator import constant_orders, generate, multiplies_in, supports, write
from lower.targets.cuda.generator.compiler import OPTIONS
from lower.targets.cuda.generator.generate import MOST_FEWER, TRIED_REGISTERS
from lower.views import row_major
from runtime.devices.cuda import kernels
from runtime.devices.cuda.gpus import GPUS, Gpu

LIBRARIES = (
    "cudnn",
    "cublas",
    "attention",
)  # fmt: skip
"""The libraries whose kernels compete with generated ones on CUDA, and attention: modules beside this file, each with its ``library``."""
MULTIPLIED = ("MatMul", "Conv", "ConvTranspose")
"""Operators whose kernels are generated as tiles of products."""
DEFAULT_GPU = "h100"
FRONT_HALF = Path(__file__).parents[2] / "eoperator"
"""The neutral half of the generator, on which texts depend as much as on the other half."""


@dataclass
class _Compiled:
    """Kernels in a file."""

    failures: dict[KernelRequest, LowerError] = field(default_factory=dict)
    compiled: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class _Compiler:
    """The generator, and NVRTC or nvcc if one is installed."""

    target: Target
    keeps_kernels: ClassVar[bool] = False
    """A kernel takes less than a second, so that none is compiled ahead."""

    def compile(self, requests: Sequence[KernelRequest], path: Path, *, threads: int) -> _Compiled:
        kernels_by_symbol, result, started = {}, _Compiled(), perf_counter()
        for request in requests:
            try:
                kernels_by_symbol[request.symbol] = _kernel(request, self.target)
                result.compiled += 1
            except LowerError as error:
                result.failures[request] = error
        kernels.write(path, kernels_by_symbol)
        result.seconds = perf_counter() - started
        return result

    def uncompiled(self, requests: Sequence[KernelRequest], *, threads: int) -> list[KernelRequest]:
        return list(requests)

    def kept(self) -> AbstractContextManager[object]:
        return nullcontext()

    def borrowed(self, count: int) -> AbstractContextManager[Sequence[Compiler]]:
        return nullcontext(())

    def most_processes(self) -> int:
        return 1

    def digest(self) -> str:
        return _digest()

    def code_digest(self, fragment: Node, implementation: Implementation) -> str:
        return _text_digest(fragment, implementation.library, implementation.precision)


@cache
def _kernel(request: KernelRequest, target: Target) -> kernels.Kernel:
    made = generate(request, target)
    architecture, registers = (target.architecture, made.report.registers) if made.report else ("", 0)
    return kernels.Kernel(made.text, made.launches, architecture, registers, made.cubin, made.scratch_bytes)


@cache
def _digest() -> str:
    """Return a hash of all that determines generated code."""
    digest = hashlib.sha256()
    for folder in (Path(__file__).parent / "generator", FRONT_HALF):
        for path in sorted(folder.glob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


@cache
def _text_digest(fragment: Node, library: str, precision: str) -> str:
    """Return a hash of a kernel's text, its launches and its compilation; of the generator if it refuses the fragment.

    Times stay valid as long as a kernel's text stays the same, whatever else of the generator changes.
    """
    request = attention.request_of(fragment) if library else KernelRequest(fragment, None, _constant_strides(fragment), precision)
    try:
        kernel = write(request)
    except LowerError:
        return _digest()
    parts = (kernel.text, kernel.launches, kernel.scratch_bytes, OPTIONS, TRIED_REGISTERS, MOST_FEWER)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _constant_strides(fragment: Node) -> tuple[tuple[int, ...] | None, ...] | None:
    """Return the strides of operands of a kernel alone: constants in the order that it reads them best in, others as they are."""
    orders, strides = constant_orders(fragment), dict[int, tuple[int, ...]]()
    for leaf in placeholders(fragment):
        if order := orders.get(leaf.integer("index")):
            stored = dict(zip(order, row_major([leaf.type.sizes[axis] for axis in order]), strict=True))
            strides[leaf.integer("index")] = tuple(stored[axis] for axis in range(leaf.type.rank))
    return tuple(strides.get(position) for position in range(max(strides) + 1)) if strides else None


def _tiles(
    tiling: Tiling, supports: Callable[[Node], str | None], implementation: Implementation
) -> Iterator[tuple[int, Tile]]:
    """Yield generated kernels: those that memory bounds, and products and convolutions, whose epilogues grow as those of libraries do."""
    yield from eoperator_tiles(tiling, supports, implementation)
    yield from library_tiles(tiling, PRODUCTS)


def _multiplied(op: str) -> tuple[str, ...]:
    return (kernels.GENERATED_STEP,) if op in MULTIPLIED else ()


def _as_product(fragment: Node, implementation: str) -> str | None:
    """Return why a fragment is no product that is generated in a precision; None if it is one."""
    precision = Implementation.parse(implementation).precision
    return None if multiplies_in(fragment, precision) else f"this is no product in {precision}, or too small a one"


PRODUCTS = Matcher(_multiplied, _as_product)


@cache
def _library(name: str, target: Target) -> Library:
    library: Library = importlib.import_module(f"lower.targets.cuda.{name}").library(target)
    return library


def _lowering(gpu: Gpu) -> Lowering:
    target = Target("cuda", gpu.architecture, (gpu.name,))
    generator = Generator(
        _tiles, supports, may_overwrite, lambda request: {"symbol": request.symbol}, _Compiler(target), kernels.FILE,
        constant_orders=constant_orders,
    )
    return Lowering(
        target,
        Implementation.parse(kernels.GENERATED_STEP, target),
        generator,
        tuple(_library(name, target) for name in LIBRARIES),
        Implementation.parse("cublas.matmul", target),
        speed=GpuSpeed(gpu=gpu),
        precisions=("tf32", "bf16", "fp16"),
    )


DESCRIBED: Mapping[str, Lowering] = {name: _lowering(gpu) for name, gpu in GPUS.items()}
"""By the name after the colon of ``--target cuda:NAME``."""
LOWERING = DESCRIBED[DEFAULT_GPU]
