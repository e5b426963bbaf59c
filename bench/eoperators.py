"""Time generated kernels beside a measured copy: ``python -m bench.eoperators [name part ...]``.

Prints microseconds, the bandwidth over the bytes of all operands and the result, and its ratio to that of a numpy copy of as
many bytes, timed in turns with it; the least of many short runs counts. Tensors fit into the caches of common processors. With
``--large`` they do not; a numpy copy then does not reach the memory's bandwidth, because it reads the memory that it overwrites.
On one thread, processor time is measured, so that other work on the machine disturbs little. With ``--threads``, the clock is
read, and the copy has as many parts, each copied by a thread of its own. ``--record`` times all cases and writes
bench/results/eoperators.json and .md: large tensors on one and on two threads, those in caches on one (starting a copy on
several takes longer than the copy).
"""

from __future__ import annotations

import argparse
import ctypes
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from bench.derivations import conv
from bench.record import RESULTS, opening, origin, record
from egraph.derive.bilinear.convolutions import algorithms
from egraph.derive.bilinear.programs import program
from egraph.tensor import Node, TensorType, placeholder, placeholders
from egraph.tensor.expr.bodies import guarded
from egraph.tensor.expr.scope import Number, Read, Reduction, Scope, Tensor, inside
from egraph.tensor.ops import apply
from egraph.tensor.ops.expression import text_of
from egraph.tensor.ops.scopes import grid
from lower.targets.cpu.generator import compile_library
from runtime.devices.cpu import openmp
from runtime.devices.cpu.dispatcher import KernelLibrary, load

ALIGNMENT_BYTES = 64
SECONDS = 0.6
"""Seconds for which each kernel and its copy are timed, at least."""
LEAST_TURNS = 5
STEADY = 0.99
"""A time below this fraction of the least so far is an improvement: as many turns again follow."""
TRANSFORMED = ("64@56", "128@28", "256@14", "512@28", "64@8x224")
"""Convolutions whose transforms are timed; the last is a block of rows."""
SAME: dict[str, Any] = {"layout": "NHWC", "strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}


class Argument(ctypes.Structure):
    _fields_ = (("type_index", ctypes.c_int32), ("zero", ctypes.c_uint32), ("pointer", ctypes.c_void_p))


Function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p)


def tensor(index: int, *shape: int, dtype: str = "float32") -> Node:
    return placeholder(index, TensorType(dtype, shape))


def cases() -> dict[str, Node]:
    """Return fragments by name, at sizes of common models."""
    window: dict[str, Any] = {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
    taps: dict[str, Any] = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 128}
    image, tokens = tensor(0, 1, 64, 112, 112), tensor(0, 1, 128, 768)
    return {
        "relu": apply("Relu", image),
        "add": apply("Add", image, tensor(1, 1, 64, 112, 112)),
        "bias relu, NCHW": apply("Relu", apply("Add", image, tensor(1, 1, 64, 1, 1))),
        "bias relu, NHWC": apply("Relu", apply("Add", tensor(0, 1, 112, 112, 64), tensor(1, 64))),
        "gelu": apply("Gelu", tensor(0, 128, 3072), approximate="none"),
        "tanh": apply("Tanh", tensor(0, 128, 3072)),
        "sigmoid": apply("Sigmoid", tensor(0, 128, 3072)),
        "NCHW to NHWC": apply("Transpose", image, perm=(0, 2, 3, 1)),
        "NHWC to NCHW": apply("Transpose", tensor(0, 1, 112, 112, 64), perm=(0, 3, 1, 2)),
        "3 channels to NHWC": apply("Transpose", tensor(0, 1, 3, 224, 224), perm=(0, 2, 3, 1)),
        "3 channels to NCHW": apply("Transpose", tensor(0, 1, 224, 224, 3), perm=(0, 3, 1, 2)),
        "attention heads": apply("Transpose", tensor(0, 1, 128, 12, 64), perm=(0, 2, 1, 3)),
        "concat, NCHW": apply("Concat", tensor(0, 1, 64, 56, 56), tensor(1, 1, 128, 56, 56), axis=1),
        "concat, NHWC": apply("Concat", tensor(0, 1, 56, 56, 64), tensor(1, 1, 56, 56, 128), axis=3),
        "pad": apply("Pad", tensor(0, 1, 64, 56, 56), before=(0, 0, 1, 1), after=(0, 0, 1, 1), mode="constant", value=0.0),
        "local response": apply("LRN", tensor(0, 1, 64, 56, 56), size=5, alpha=1e-4, beta=0.75, bias=1.0, axis=1),
        "softmax": apply("Softmax", tensor(0, 1, 12, 128, 128), axis=3),
        "layer norm": apply("LayerNormalization", tokens, tensor(1, 768), tensor(2, 768), axis=2, epsilon=1e-5),
        "instance norm": apply("InstanceNormalization", tensor(0, 1, 64, 56, 56), tensor(1, 64), tensor(2, 64), epsilon=1e-5),
        "group norm": group_norm(tensor(0, 1, 256, 56, 56), 32),
        "norm of all, transposed": group_norm(apply("Transpose", tensor(0, 1, 56, 56, 64), perm=(0, 3, 1, 2)), 1),
        "sum of all, transposed": apply("ReduceSum", apply("Transpose", tensor(0, 1, 56, 56, 64), perm=(0, 3, 1, 2)), axes=(1, 2, 3)),
        "mean, NCHW": apply("ReduceMean", tensor(0, 1, 512, 7, 7), axes=(2, 3)),
        "mean, NHWC": apply("ReduceMean", tensor(0, 1, 7, 7, 512), axes=(1, 2)),
        "max pool, NHWC": apply("MaxPool", tensor(0, 1, 112, 112, 64), layout="NHWC", **window),
        "max pool, NCHW": apply("MaxPool", image, layout="NCHW", **window),
        "depthwise, NHWC": apply("Conv", tensor(0, 1, 56, 56, 128), tensor(1, 128, 1, 3, 3), layout="NHWC", **taps),
        "depthwise, NCHW": apply("Conv", tensor(0, 1, 128, 56, 56), tensor(1, 128, 1, 3, 3), layout="NCHW", **taps),
        "depthwise bytes, NCHW": depthwise_bytes(96, 56),
        "offset sum, taps first": offset_sum(1, 28, 28, 64, taps_first=True),
        "offset sum, taps last": offset_sum(1, 28, 28, 64, taps_first=False),
        **{name: fragment for text in TRANSFORMED for name, fragment in transforms(text).items()},
    }


def large_cases() -> dict[str, Node]:
    """Return fragments by name whose tensors no cache holds."""
    image, last = tensor(0, 1, 64, 448, 448), tensor(0, 1, 448, 448, 64)
    blocks = apply("Reshape", tensor(0, 1, 224, 224, 256), shape=(1, 224, 224, 2, 2, 64))
    window: dict[str, Any] = {"kernel_shape": (3, 3), "count_include_pad": 1, **SAME}
    return {
        "relu": apply("Relu", image),
        "add": apply("Add", image, tensor(1, 1, 64, 448, 448)),
        "bias add relu, NHWC": apply("Relu", apply("Add", apply("Add", last, tensor(1, 64)), tensor(2, 1, 448, 448, 64))),
        "bias relu, NCHW": apply("Relu", apply("Add", image, tensor(1, 64, 1, 1))),
        "NCHW to NHWC": apply("Transpose", image, perm=(0, 2, 3, 1)),
        "NHWC to NCHW": apply("Transpose", last, perm=(0, 3, 1, 2)),
        "matrix": apply("Transpose", tensor(0, 3000, 4000), perm=(1, 0)),
        "3 channels to NHWC": apply("Transpose", tensor(0, 1, 3, 2000, 2100), perm=(0, 2, 3, 1)),
        "3 channels to NCHW": apply("Transpose", tensor(0, 1, 2000, 2100, 3), perm=(0, 3, 1, 2)),
        "attention heads": apply("Transpose", tensor(0, 1, 16000, 12, 64), perm=(0, 2, 1, 3)),
        "attention heads, back": apply("Transpose", tensor(0, 1, 12, 16000, 64), perm=(0, 2, 1, 3)),
        "depth to space": apply("Reshape", apply("Transpose", blocks, perm=(0, 1, 3, 2, 4, 5)), shape=(1, 448, 448, 64)),
        "pad, NHWC": apply("Pad", last, before=(0, 1, 1, 0), after=(0, 1, 1, 0), mode="constant", value=0.0),
        "concat, NHWC": apply("Concat", tensor(0, 1, 448, 448, 32), tensor(1, 1, 448, 448, 32), axis=3),
        "average of 3x3, NHWC": apply("AveragePool", last, **window),
        "average of 3x3, NCHW": apply("AveragePool", image, **{**window, "layout": "NCHW"}),
        "softmax": apply("Softmax", tensor(0, 16000, 1000), axis=1),
        "layer norm": apply("LayerNormalization", tensor(0, 16000, 768), tensor(1, 768), tensor(2, 768), axis=1, epsilon=1e-5),
        "mean, NCHW": apply("ReduceMean", image, axes=(2, 3)),
        "mean, NHWC": apply("ReduceMean", last, axes=(1, 2)),
        "offset sum, taps first": offset_sum(1, 200, 210, 128, taps_first=True),
        "offset sum, taps last": offset_sum(1, 200, 210, 128, taps_first=False),
        **transforms("64@448"),
    }


def group_norm(image: Node, groups: int) -> Node:
    """Return a group normalisation as exporters write it: an instance normalisation of the image reshaped, and scale and shift."""
    _, channels, height, width = image.type.sizes
    grouped = apply("Reshape", image, shape=(1, groups, channels // groups * height * width))
    norm = apply("InstanceNormalization", grouped, tensor(1, groups), tensor(2, groups), epsilon=1e-5)
    scaled = apply("Mul", apply("Reshape", norm, shape=image.type.sizes), tensor(3, channels, 1, 1))
    return apply("Add", scaled, tensor(4, channels, 1, 1))


def depthwise_bytes(channels: int, size: int) -> Node:
    """Return a convolution with one channel a group between a dequantisation and a quantisation."""
    image = apply("Dequantize", tensor(0, 1, channels, size, size, dtype="uint8"), tensor(1), tensor(2, dtype="uint8"))
    sums = apply("Conv", image, tensor(3, channels, 1, 3, 3), group=channels, **{**SAME, "layout": "NCHW"})
    return apply("Quantize", sums, tensor(4), tensor(5, dtype="uint8"))


def offset_sum(n: int, h: int, w: int, f: int, *, taps_first: bool) -> Node:
    """sum_{r,s} x[.., h+r-1, w+s-1, ..]: what is left of a 3x3 convolution when its products are one matrix product."""
    outer, (b, i, j, k) = grid("i", (n, h, w, f))
    taps, (r, s) = grid("k", (3, 3))
    y, x = i + r - 1, j + s - 1
    pixel = (b * h + y) * w + x
    shape, coordinates = ((9, n * h * w, f), (r * 3 + s, pixel, k)) if taps_first else ((n * h * w, 9 * f), (pixel, (r * 3 + s) * f + k))
    body = guarded([*inside(y, 0, h), *inside(x, 0, w)], Read(Tensor("0", shape), coordinates), Number(Fraction(0)))
    return apply("Expression", tensor(0, *shape), text=text_of(Scope(outer, taps, Reduction.SUM, body)))


def transforms(text: str) -> dict[str, Node]:
    """Return both transforms of a 3x3 convolution with tiles of 4 x 4, the second with bias, residual and relu."""
    node = conv(text + " 3x3")
    x, w = node.inputs
    bilinear = next(algorithm for algorithm in algorithms(node) if {axis.algorithm.products for axis in algorithm.axes} == {6})
    last = program(x, w, bilinear)
    product = last.inputs[0]
    y = apply("Expression", tensor(0, *product.type.sizes), text=last.string("text"))
    y = apply("Relu", apply("Add", apply("Add", y, tensor(1, y.type.sizes[-1])), tensor(2, *y.type.sizes)))
    return {f"V {text}": product.inputs[0], f"Y {text}": y}


def least_us(runs: Sequence[Callable[[], object]], clock: Callable[[], float]) -> list[float]:
    """Return the least time of a call of each, in turns, until more turns find no shorter time: disturbances only add time."""
    for run in runs:
        run()
    least = [float("inf")] * len(runs)
    last, end = 0, time.perf_counter() + SECONDS
    turn = 0
    while time.perf_counter() < end or turn < 2 * last + LEAST_TURNS:
        turn += 1
        for position, run in enumerate(runs):
            run()  # its data is then where it leaves it, not where the other run left it
            started = clock()
            run()
            spent = clock() - started
            if not spent:  # the clock of processor time sometimes stands still
                continue
            last = turn if spent < STEADY * least[position] else last
            least[position] = min(least[position], spent)
    return [seconds * 1e6 for seconds in least]


def aligned(shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
    """Return an array of random numbers in [0, 1), or of random bytes, at an address with the runtime's alignment."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.empty(size + ALIGNMENT_BYTES, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT_BYTES
    array = memory[start : start + size].view(dtype).reshape(shape)
    random = np.random.default_rng(0)
    array[...] = random.random(shape, np.float32) if dtype == "float32" else random.integers(0, 256, shape)
    return array


def copying(size_bytes: int, pool: ThreadPoolExecutor, threads: int) -> Callable[[], object]:
    """Return a call of a numpy copy that moves so many bytes, half of them read."""
    parts = [(aligned((size_bytes // 8 // threads,)), aligned((size_bytes // 8 // threads,))) for _ in range(threads)]
    if threads == 1:
        return lambda: np.copyto(parts[0][1], parts[0][0])
    return lambda: list(pool.map(lambda part: np.copyto(part[1], part[0]), parts))


def calling(address: int, arrays: list[np.ndarray]) -> Callable[[], object]:
    """Return a call of the kernel at an address; the result is the last array."""
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in arrays]
    arguments = (Argument * len(arrays))(*[Argument(7, 0, ctypes.addressof(pointer)) for pointer in pointers])
    kept = (arrays, pointers, arguments)
    function, where = Function(address), ctypes.addressof(arguments)
    return lambda: (function(None, where, len(kept[0]), None), kept)


@dataclass(frozen=True)
class Row:
    """A kernel's and its copy's least time, over the same number of bytes."""

    name: str
    large: bool
    threads: int
    size_bytes: int
    time_us: float
    copy_us: float

    @property
    def of_copy(self) -> float:
        return self.copy_us / self.time_us

    @property
    def gigabytes_per_second(self) -> float:
        return self.size_bytes / self.time_us / 1e3

    def line(self) -> str:
        copy = self.size_bytes / self.copy_us / 1e3
        return f"{self.name:24s} {self.time_us:9.1f} us {self.gigabytes_per_second:7.1f} GB/s   copy {copy:7.1f} GB/s   {self.of_copy:4.0%}"


def measured(names: Sequence[str], threads: int, *, large: bool) -> Iterator[Row]:
    """Compile the cases whose names contain one of these parts, or all cases if none is given; yield each when it is timed."""
    available = large_cases() if large else cases()
    chosen = {name: f for name, f in available.items() if not names or any(part in name for part in names)}
    if not chosen:
        return
    clock = time.thread_time if threads == 1 else time.perf_counter
    openmp.set_threads(threads)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(threads) as pool:
        library = compile_library(list(chosen.values()), Path(folder) / "kernels.so", threads=threads)
        code = KernelLibrary(library.path, load())
        for name, fragment in chosen.items():
            types = [leaf.type for leaf in (*placeholders(fragment), fragment)]
            arrays = [aligned(type.sizes, type.dtype) for type in types]
            size_bytes = sum(array.nbytes for array in arrays)
            runs = [calling(code.kernel(library[fragment]), arrays), copying(size_bytes, pool, threads)]
            yield Row(name, large, threads, size_bytes, *least_us(runs, clock))
        code.close()


RECORDED = ((True, 1), (True, 2), (False, 1))
"""What is recorded: whether tensors are large, and on how many threads."""


def page(rows: Sequence[Row], where: Mapping[str, Any]) -> str:
    """Return the page about all kernels."""
    lines = [
        "# Generated kernels", "", *opening(where, ("apache-tvm", "numpy")),
        "Bytes are those of all operands and of the result, once each; `of a copy` is their bandwidth over that of numpy's copy of as many",
        "bytes, half of them read, timed in turns, on as many threads. The least of many runs counts; on one thread of processor time.", "",
    ]  # fmt: skip
    for large, threads in RECORDED:
        group = [row for row in rows if (row.large, row.threads) == (large, threads)]
        lines += [f"## {'Tensors beyond the caches' if large else 'Tensors in caches'}, {threads} thread{'s' if threads > 1 else ''}", ""]
        lines += ["| kernel | MB | us | GB/s | of a copy |", "|---|---|---|---|---|"]
        lines += [
            f"| {row.name} | {row.size_bytes / 1e6:.1f} | {row.time_us:,.1f} | {row.gigabytes_per_second:.1f} | {row.of_copy:.0%} |"
            for row in group
        ]
        lines += [""]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Time the chosen cases and print a line for each."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.eoperators", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="parts of names of kernels; all without")
    parser.add_argument("--large", action="store_true", help="tensors beyond the caches")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="of each kernel (default: 1)")
    parser.add_argument("--record", action="store_true", help="all sizes and threads, written into a table")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of eoperators.json and eoperators.md")
    options = parser.parse_args(arguments)
    rows = []
    for large, threads in RECORDED if options.record else ((options.large, options.threads),):
        for row in measured(options.names, threads, large=large):
            rows.append(row)
            print(row.line(), flush=True)
    if not rows:
        parser.error(f"no kernel has one of {', '.join(options.names)} in its name")
    if options.record:
        where = origin(max(threads for _, threads in RECORDED), (parser.prog, *options.names, "--record"))
        record(options.results, "eoperators", where, rows, page(rows, where))


if __name__ == "__main__":
    main()
