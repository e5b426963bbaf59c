"""The cost model of kernels on a GPU: estimates alone, nothing was timed.

A launch has a floor; bytes move at the bandwidth that was measured on an H100, scaled to the GPU by its data sheet; contractions run in
waves of tiles over the multiprocessors. Where NVIDIA's own model of matrix products is installed (``nvidia-matmul-heuristics``), it
takes the place of the waves, for convolutions too, as the products that they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any

from egraph.tensor import PLAIN, Candidate, Node, walk
from egraph.tensor.ops import OPS
from lower.roofline import ADDITIONS_A_FUNCTION, DeviceSpeed, Work
from runtime.devices.cuda.gpus import H100, Gpu

MEASURED_H100: Sequence[tuple[int, float]] = (
    (8 << 10, 1.4), (64 << 10, 12.0), (1 << 20, 179.0), (4 << 20, 639.0), (16 << 20, 1584.0), (64 << 20, 2343.0), (1 << 30, 3126.0),
)  # fmt: skip
"""Bytes that a kernel moves and the gigabytes a second that it reaches, launch included: measured on an H100, published in XLA's
gpu_dot_fusion_cost_model.cc."""
MEASURED_FLOOR_US = 5.3
"""What those kernels took besides moving, in microseconds: the two smallest sizes differ by nothing else."""
SMALL = 2
"""Measured sizes, the first ones, that say what the floor is and nothing about moving."""
REPLAYED_LAUNCH_US = 2.0
"""A kernel's launch and end inside of a replayed graph, in microseconds: a guess between XLA's 1 and the floor above."""
CALL_US = 12.0
"""Launching a graph, copying small inputs and outputs and waiting, in microseconds: a guess."""
HOST_STEP_US = 40.0
"""Waiting for the device, a call of onnxruntime and starting again, in microseconds: a guess."""
HOST_GIGABYTES_S = 12.0
"""Gigabytes a second between host and device, from memory that is not locked: a guess of half of what PCIe 4 x16 reaches."""
HOST_GIGAFLOPS_S = 50.0
"""What onnxruntime reaches beside a GPU, in thousand million operations a second: a guess."""
TILES = ((128, 128), (128, 64), (64, 128), (64, 64), (64, 32), (32, 64), (32, 32))
"""Rows and columns of a product that one block computes."""
TILE_EFFICIENCY = {32: 0.35, 64: 0.6, 128: 0.85}
"""Share of a multiprocessor's peak that a tile reaches, by its smaller side: 64 rows take 0.63 of what 128 reach (XLA, Hopper)."""
SPLITS = (1, 2, 4, 8, 16)
"""Parts that the summed axis is cut in, each a block of its own."""
HEURISTIC_TYPES = {"float32": "SSS", "tf32": "TST", "bf16": "TST", "fp16": "TST"}
"""What NVIDIA's model calls the types of a product, by precision; 16 bits gain no more than tf32 where operands lie in float32."""
LAUNCHED = (16, 64, 128, 256)
"""Sizes of square products of which the model's shortest time is that of a launch; the smallest takes it longer than the largest."""
VENDOR = ("cudnn", "cublas")
GENERATED_EFFICIENCY = 0.4
"""What a generated contraction reaches of a library's speed: a guess."""
TENSOR_EFFICIENCY = 0.2
"""What one on tensor cores reaches of a library's speed in tf32: a guess, since its operands are staged without overlap."""


@dataclass(frozen=True)
class Product:
    """A contraction as matrix products: ``count`` of [rows, summed] x [summed, columns]."""

    count: int
    rows: int
    columns: int
    summed: int


def product_of(node: Node) -> Product | None:
    """Return the product that a contraction is; None of what is none."""
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


@cache
def _heuristics(gpu: str) -> Any:
    """Return NVIDIA's model of products on a GPU; None where it is not installed or does not know the GPU."""
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
def heuristic_us(gpu: str, product: Product, precision: str) -> float | None:
    """Return what NVIDIA's model says that a product takes, without its launch; None where there is no such model."""
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
        points = [(0, 0.0), *((size, max(0.0, size / rate / 1e3 - MEASURED_FLOOR_US)) for size, rate in MEASURED_H100[SMALL:])]
        scale = H100.memory_gigabytes_s / self.gpu.memory_gigabytes_s
        for (low, start_us), (high, end_us) in pairwise(points):
            if size_bytes <= high:
                return scale * (start_us + (end_us - start_us) * (size_bytes - low) / (high - low))
        return scale * points[-1][1] * size_bytes / points[-1][0]

    def estimate_us(self, amount: Work) -> float:
        peak = self.gpu.float32_gigaflops_s if amount.contracts else self.gpu.float32_gigaflops_s / 4
        return self.launch_us + max(self.moving_us(amount.size_bytes), amount.flops / (peak * 1e3))

    def waves_us(self, product: Product, precision: str = PLAIN) -> float:
        """Return what a product takes by whole waves of the tile, and of the parts of the sum, that take the least."""
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

    def kernel_us(self, candidate: Candidate, amount: Work) -> float:
        if candidate.implementation.is_opaque:
            return HOST_STEP_US + amount.size_bytes / HOST_GIGABYTES_S / 1e3 + amount.flops / HOST_GIGAFLOPS_S / 1e3
        products = [product for node in walk((candidate.fragment,)) if (product := product_of(node)) is not None]
        is_library = candidate.implementation.library in VENDOR
        computing_us = 0.0
        for product in products:
            precision = candidate.implementation.precision
            heuristic = heuristic_us(self.gpu.name, product, precision) if is_library else None
            computing_us += self.waves_us(product, precision) if heuristic is None else heuristic
        contractions = [node for node in walk((candidate.fragment,)) if node.op in OPS and OPS[node.op].category == "contraction"]
        if len(contractions) > len(products):  # an expression with sums of its own
            computing_us += amount.flops / (self.gpu.float32_gigaflops_s * 1e3)
        if not is_library:
            computing_us /= GENERATED_EFFICIENCY if candidate.implementation.precision == PLAIN else TENSOR_EFFICIENCY
        if not products:
            additions = max(0.0, amount.flops - amount.functions) / ADDITIONS_A_FUNCTION
            computing_us += (amount.functions + additions) * ADDITIONS_A_FUNCTION / (self.gpu.float32_gigaflops_s * 1e3 / 4)
        return self.launch_us + max(self.moving_us(amount.size_bytes), computing_us)
