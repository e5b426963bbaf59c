"""The cost model of kernels on a GPU, for kernels that no GPU has timed.

A launch has a minimal time. Bytes move at the bandwidth that was measured on an H100, scaled to the GPU by its data sheet. Contractions run
in waves of tiles over the multiprocessors: those of libraries in float32 at the rates that were measured, generated ones by the model that
chooses their tiles. In lower precisions NVIDIA's own model of matrix products (``nvidia-matmul-heuristics``) replaces the waves if it is
installed, also for convolutions, as the products that they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any

from egraph.tensor import PLAIN, Candidate, Implementation, Node, walk
from egraph.tensor.expr.index import known
from egraph.tensor.ops import OPS
from egraph.tensor.ops.window import layout_of
from lower.attention.match import AttentionCall, match
from lower.eoperator.phases import has_phases
from lower.eoperator.repeated import repeated_operations
from lower.roofline import ADDITIONS_A_FUNCTION, DeviceSpeed, Work
from lower.targets.cuda.generator.attention import Blocking, has_two_passes
from lower.targets.cuda.generator.products import CYCLES_A_US, LEAST_SIDE, Sum, tiling_of
from runtime.devices.cuda.gpus import H100, Gpu

REPLAYED_LAUNCH_US = 1.2
"""The time of a small kernel inside of a replayed graph, in microseconds: measured on an H100, where an empty one takes 0.98."""
MEASURED_H100: Sequence[tuple[int, float]] = (
    (1 << 18, 1.13), (1 << 20, 1.81), (1 << 21, 2.44), (1 << 22, 3.29), (1 << 23, 4.79), (1 << 24, 7.89), (1 << 25, 14.15),
    (1 << 26, 26.36), (1 << 28, 100.1), (1 << 30, 384.0),
)  # fmt: skip
"""Bytes that a kernel moves from and to memory, and the microseconds that it takes, launch included (``bench.gpu_rates``)."""
CALL_US = 12.0
"""The time of launching a graph, copying small inputs and outputs and waiting, in microseconds: a guess."""
HOST_STEP_US = 40.0
"""The time of waiting for the device, a call of onnxruntime and starting again, in microseconds: a guess."""
HOST_GIGABYTES_S = 12.0
"""Gigabytes a second between host and device, for memory that is not page-locked: a guess of half of what PCIe 4 x16 reaches."""
HOST_GIGAFLOPS_S = 50.0
"""Operations a second that onnxruntime reaches beside a GPU, in thousand millions: a guess."""
TILES = ((128, 128), (128, 64), (64, 128), (64, 64), (64, 32), (32, 64), (32, 32))
"""Rows and columns of a product that one block computes."""
TILE_EFFICIENCY = {32: 0.35, 64: 0.6, 128: 0.85}
"""The share of a multiprocessor's peak that a tile reaches, by its smaller side: 64 rows take 0.63 of what 128 reach (XLA, Hopper)."""
SPLITS = (1, 2, 4, 8, 16)
"""Parts into which the summed axis is split, each a block of its own."""
PLAIN_RATES = {
    "cudnn.convolution": (128, 64, 37.0, 2.0), "cudnn.deconvolution": (128, 64, 90.0, 2.0), "cublas.matmul": (64, 64, 17.0, 3.0),
}  # fmt: skip
"""Rows and columns of the tiles of a library's kernels in float32, the nanoseconds of a term of the sum, and the microseconds beside the
sum: fitted to times of the kernels of seven networks on an H100. cuDNN splits no sum into parts."""
CUT_TERMS, CUT_TERM = 1024, 1.5
"""The number of terms from which cuBLAS splits a sum if multiprocessors would idle, and the factor on the time of a term of a part."""
HEURISTIC_TYPES = {"tf32": "TST", "bf16": "TST", "fp16": "TST"}
"""The names of the types of a product in NVIDIA's model, by precision; 16 bits gain no more than tf32 if operands lie in float32."""
LAUNCHED = (16, 64, 128, 256)
"""Sizes of square products whose shortest time in the model is that of a launch; the smallest takes longer than the largest."""
VENDOR = ("cudnn", "cublas")
UNTILED_SHARE = 0.015
"""The share of the peak that a generated contraction of a few rows reaches: a hundredth to a thirtieth was measured on an H100."""
REDUCTION_US = 0.45
"""The time for which a kernel waits while threads share a row's reduction, in microseconds: sums of 768, softmax of 128 and means of 49
took 0.4 to 0.8 more than moving their bytes on an H100."""
NORMALIZATIONS = ("Softmax", "LogSoftmax", "LayerNormalization", "InstanceNormalization")
"""Operators of two consecutive reductions."""
SHARING_THREADS, WAITING_CYCLES = 8, 8
"""The number of threads that share a result's reductions, and the cycles that a thread waits for an operation of a nested reduction. Two
kernels that repeat layer norms took 305 and 877 us on an H100; the estimates are 297 and 1290."""
TENSOR_EFFICIENCY = 0.2
"""The share of a library's tf32 speed that a generated contraction on tensor cores reaches: a guess; operands are staged without
overlap."""


@dataclass(frozen=True)
class Product:
    """A contraction as matrix products: ``count`` of [rows, summed] x [summed, columns]."""

    count: int
    rows: int
    columns: int
    summed: int


def product_of(node: Node) -> Product | None:
    """Return the product that a contraction is; None for other operators."""
    if not all(each.type.is_static for each in (node, *node.inputs)):
        return None
    a: dict[str, Any] = dict(node.attributes)
    if node.op == "MatMul":
        left, right = (operand.type.sizes for operand in node.inputs)
        rows, columns = left[-2] if len(left) > 1 else 1, right[-1] if len(right) > 1 else 1
        count = node.type.elements // max(1, rows * columns)
        if len(right) <= 2:  # batches of the left operand are rows
            return Product(1, count * rows, columns, left[-1])
        return Product(count, rows, columns, left[-1])
    if node.op == "Conv":
        outputs, inputs, *taps = node.inputs[1].type.sizes
        return Product(a["group"], node.type.elements // outputs, outputs // a["group"], inputs * math.prod(taps))
    if node.op == "ConvTranspose":
        inputs, outputs, *taps = node.inputs[1].type.sizes
        pixels = node.inputs[0].type.elements // inputs
        return Product(a["group"], pixels, outputs * math.prod(taps), inputs // a["group"])
    return None


def gathered(node: Node, product: Product) -> Product:
    """Return a contraction's product as a generated kernel computes it.

    A transposed convolution gathers: each result adds up all taps, or, if the stride divides the results, only the taps of its phase.
    """
    if node.op != "ConvTranspose":
        return product
    a: dict[str, Any] = dict(node.attributes)
    _, outputs, *taps = node.inputs[1].type.sizes
    places = map(known, layout_of(node.type.sizes, a).space(node.type.sizes))
    phases, each = 1, product.summed
    for count, size, stride, dilation in zip(taps, places, a["strides"], a["dilations"], strict=True):
        is_split = has_phases(size, count, stride, dilation)
        phases, each = phases * (stride if is_split else 1), each * (-(-count // stride) if is_split else count)
    return Product(product.count * phases, node.type.elements // (outputs * product.count * phases), outputs, each)


@cache
def _heuristics(gpu: str) -> Any:
    """Return NVIDIA's model of products on a GPU; None if it is not installed or does not know the GPU."""
    try:
        import nvMatmulHeuristics as nvidia
    except ImportError:
        return None
    names = {"h100": "H100_SXM", "h200": "H200_SXM", "a100": "A100_SXM_80GB"}
    kind = getattr(nvidia.NvMatmulHeuristicsNvidiaGpu, names.get(gpu, ""), None)
    if kind is None:
        return None
    return nvidia.NvMatmulHeuristicsInterfaceEx(
        backend=nvidia.NvMatmulHeuristicsTarget.CUTLASS3, flags=nvidia.NvMatmulHeuristicsFlags.PERF_MODEL_BASED_AUTO_TUNING, gpu=kind
    )


@lru_cache(maxsize=1 << 14)
def product_us(gpu: str, product: Product, precision: str) -> float | None:
    """Return the time of a product by NVIDIA's model, without its launch; None if there is no such model."""
    interface = _heuristics(gpu)
    if interface is None:
        return None
    import nvMatmulHeuristics as nvidia

    def microseconds(rows: int, columns: int, summed: int, count: int) -> float:
        layout = nvidia.NvMatmulHeuristicsMatmulLayout.NN_ROW_MAJOR
        problem = interface.makeNvMatmulHeuristicsProblem(rows, columns, summed, layout, batch_size=count)
        return 1e6 * float(interface.get(problem, 1, precision=HEURISTIC_TYPES[precision])[0]["runtime"])

    launch_us = min(microseconds(size, size, size, 1) for size in LAUNCHED)
    return max(0.0, microseconds(product.rows, product.columns, product.summed, product.count) - launch_us)


@dataclass(frozen=True)
class GpuSpeed(DeviceSpeed):
    """The rates of a described GPU."""

    launch_us: float = REPLAYED_LAUNCH_US
    call_us: float = CALL_US
    gpu: Gpu = field(default=H100)

    def moving_us(self, size_bytes: float) -> float:
        """Return the time of moving bytes, interpolated linearly between the measured sizes."""
        points = [(0, 0.0), *((size, max(0.0, time_us - REPLAYED_LAUNCH_US)) for size, time_us in MEASURED_H100)]
        scale = H100.memory_gigabytes_s / self.gpu.memory_gigabytes_s
        for (low, start_us), (high, end_us) in pairwise(points):
            if size_bytes <= high:
                return scale * (start_us + (end_us - start_us) * (size_bytes - low) / (high - low))
        return scale * points[-1][1] * size_bytes / points[-1][0]

    def estimate_us(self, amount: Work) -> float:
        peak = self.gpu.float32_gigaflops_s if amount.contracts else self.gpu.float32_gigaflops_s / 4
        return self.launch_us + max(self.moving_us(amount.size_bytes), amount.flops / (peak * 1e3))

    def waves_us(self, product: Product, precision: str = PLAIN) -> float:
        """Return the time of a product in whole waves, by the tile and the number of parts of the sum that take the least."""
        peak = self.gpu.float32_gigaflops_s if precision == PLAIN else self.gpu.tf32_gigaflops_s
        a_multiprocessor = peak / self.gpu.multiprocessors * 1e3  # operations a microsecond
        times = []
        for rows, columns in TILES:
            tiles = product.count * -(-product.rows // rows) * -(-product.columns // columns)
            speed = a_multiprocessor * TILE_EFFICIENCY[min(rows, columns)]
            for parts in SPLITS:
                waves = -(-tiles * parts // self.gpu.multiprocessors)
                added_us = self.moving_us(8 * (parts - 1) * product.count * product.rows * product.columns) if parts > 1 else 0.0
                times.append(waves * 2 * rows * columns * -(-product.summed // parts) / speed + added_us)
        return min(times)

    def library_us(self, product: Product, implementation: Implementation) -> float:
        """Return the time of a library's kernel for a product, besides its launch."""
        precision = implementation.precision
        if precision == PLAIN:
            rows, columns, term_ns, begin_us = PLAIN_RATES[implementation.name.partition("#")[0]]
            tiles = product.count * -(-product.rows // rows) * -(-product.columns // columns)
            waves, terms = -(-tiles // self.gpu.multiprocessors), float(product.summed)
            if implementation.library == "cublas" and terms > CUT_TERMS:
                terms = min(terms, max(CUT_TERMS, CUT_TERM * terms / max(1, self.gpu.multiprocessors // tiles)))
            return begin_us + waves * terms * term_ns / 1e3 * H100.clock_khz / self.gpu.clock_khz
        heuristic_us = product_us(self.gpu.name, product, precision)
        return self.waves_us(product, precision) if heuristic_us is None else heuristic_us

    def tiled_us(self, product: Product) -> float:
        """Return the time of a generated kernel in tiles, besides its launch."""
        sizes = product.count, product.rows, product.columns, Sum(1, product.summed, is_flat=False)
        return tiling_of(*sizes).cycles(*sizes) / CYCLES_A_US * H100.clock_khz / self.gpu.clock_khz

    def attention_us(self, fragment: Node) -> float:
        """Return the time of attention in one kernel, besides its launch, by a model of its cycles."""
        call = match(fragment)
        assert isinstance(call, AttentionCall), "its tile was matched"
        cycles = Blocking.of(call).cycles(call.arguments[1].window.shape[-2], 1 + has_two_passes(call), self.gpu.multiprocessors)
        return cycles / self.gpu.clock_khz * 1e3

    def repeating_us(self, fragment: Node) -> float:
        """Return the time of repeated operations of a generated kernel: few threads a result, each waiting for its last operation."""
        a_result = SHARING_THREADS / WAITING_CYCLES * self.gpu.clock_khz / 1e3
        peak = self.gpu.float32_gigaflops_s * 1e3 / 4
        return repeated_operations(fragment) / min(peak, fragment.type.elements * a_result)

    def kernel_us(self, candidate: Candidate, amount: Work) -> float:
        if candidate.implementation.is_opaque:
            return HOST_STEP_US + amount.size_bytes / HOST_GIGABYTES_S / 1e3 + amount.flops / HOST_GIGAFLOPS_S / 1e3
        products = [(node, product) for node in walk((candidate.fragment,)) if (product := product_of(node)) is not None]
        implementation = candidate.implementation
        computing_us = 0.0
        for node, product in products:
            tiled = gathered(node, product)
            if implementation.library in VENDOR:
                computing_us += self.library_us(product, implementation)
            elif implementation.precision == PLAIN and min(tiled.rows, tiled.columns) >= LEAST_SIDE:
                computing_us += self.tiled_us(tiled)
            elif implementation.precision == PLAIN:
                flops = 2 * tiled.count * tiled.rows * tiled.columns * tiled.summed
                computing_us += flops / (UNTILED_SHARE * self.gpu.float32_gigaflops_s * 1e3)
            else:
                computing_us += self.waves_us(product, implementation.precision) / TENSOR_EFFICIENCY
        if implementation.library == "attention":
            computing_us = self.attention_us(candidate.fragment)
        contractions = [node for node in walk((candidate.fragment,)) if node.op in OPS and OPS[node.op].category == "contraction"]
        if len(contractions) > len(products):  # an expression with sums of its own
            computing_us += amount.flops / (self.gpu.float32_gigaflops_s * 1e3)
        if not products:
            additions = (max(0.0, amount.flops - amount.functions) + amount.repeated) / ADDITIONS_A_FUNCTION
            computing_us += (amount.functions + additions) * ADDITIONS_A_FUNCTION / (self.gpu.float32_gigaflops_s * 1e3 / 4)
        waiting_us = 0.0
        if implementation.is_generated:
            computing_us += self.repeating_us(candidate.fragment)
            operators = [node.op for node in walk((candidate.fragment,))]
            waiting_us = REDUCTION_US * sum(2 * (op in NORMALIZATIONS) + op.startswith("Reduce") for op in operators)
        return self.launch_us + max(self.moving_us(amount.size_bytes), computing_us) + waiting_us
