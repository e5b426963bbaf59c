"""Time generated kernels on one thread beside a measured copy: ``python -m bench.eoperators [name part ...]``.

Prints microseconds, the bandwidth over the bytes of all operands and the result, and that of numpy copying as many bytes.
"""

from __future__ import annotations

import ctypes
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from egraph.ir import Node, TensorType, placeholder
from egraph.ops import apply
from lower.eoperator import compile_library
from lower.eoperator.request import placeholders


class Argument(ctypes.Structure):
    _fields_ = (("type_index", ctypes.c_int32), ("zero", ctypes.c_uint32), ("pointer", ctypes.c_void_p))


def tensor(index: int, *shape: int) -> Node:
    return placeholder(index, TensorType("float32", shape))


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
        "attention heads": apply("Transpose", tensor(0, 1, 128, 12, 64), perm=(0, 2, 1, 3)),
        "concat, NCHW": apply("Concat", tensor(0, 1, 64, 56, 56), tensor(1, 1, 128, 56, 56), axis=1),
        "concat, NHWC": apply("Concat", tensor(0, 1, 56, 56, 64), tensor(1, 1, 56, 56, 128), axis=3),
        "pad": apply("Pad", tensor(0, 1, 64, 56, 56), before=(0, 0, 1, 1), after=(0, 0, 1, 1), mode="constant", value=0.0),
        "local response": apply("LRN", tensor(0, 1, 64, 56, 56), size=5, alpha=1e-4, beta=0.75, bias=1.0, axis=1),
        "softmax": apply("Softmax", tensor(0, 1, 12, 128, 128), axis=3),
        "layer norm": apply("LayerNormalization", tokens, tensor(1, 768), tensor(2, 768), axis=2, epsilon=1e-5),
        "instance norm": apply("InstanceNormalization", tensor(0, 1, 64, 56, 56), tensor(1, 64), tensor(2, 64), epsilon=1e-5),
        "mean, NCHW": apply("ReduceMean", tensor(0, 1, 512, 7, 7), axes=(2, 3)),
        "mean, NHWC": apply("ReduceMean", tensor(0, 1, 7, 7, 512), axes=(1, 2)),
        "max pool, NHWC": apply("MaxPool", tensor(0, 1, 112, 112, 64), layout="NHWC", **window),
        "max pool, NCHW": apply("MaxPool", image, layout="NCHW", **window),
        "depthwise, NHWC": apply("Conv", tensor(0, 1, 56, 56, 128), tensor(1, 128, 1, 3, 3), layout="NHWC", **taps),
        "depthwise, NCHW": apply("Conv", tensor(0, 1, 128, 56, 56), tensor(1, 128, 1, 3, 3), layout="NCHW", **taps),
    }


def median_us(run: Callable[[], object], repetitions: int = 15) -> float:
    """Return the median time of a call, each sample at least a millisecond long."""
    run()
    started = time.perf_counter()
    run()
    inner = max(1, int(1e-3 / max(time.perf_counter() - started, 1e-7)))
    samples = []
    for _ in range(repetitions):
        started = time.perf_counter()
        for _ in range(inner):
            run()
        samples.append((time.perf_counter() - started) / inner * 1e6)
    return statistics.median(samples)


def main() -> None:
    """Compile the chosen cases and print a line for each."""
    chosen = {name: f for name, f in cases().items() if len(sys.argv) == 1 or any(part in name for part in sys.argv[1:])}
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        library = compile_library(list(chosen.values()), Path(folder) / "kernels.so", threads=1)
        code = ctypes.CDLL(str(library.path))
        for name, fragment in chosen.items():
            arrays = [random.standard_normal(leaf.type.sizes).astype(np.float32) for leaf in placeholders(fragment)]
            arrays.append(np.empty(fragment.type.sizes, np.float32))
            pointers = [ctypes.c_void_p(array.ctypes.data) for array in arrays]
            arguments = (Argument * len(arrays))(*[Argument(7, 0, ctypes.addressof(p)) for p in pointers])
            function = code["__tvm_ffi_" + library[fragment]]
            function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p)
            address, count = ctypes.addressof(arguments), len(arrays)
            time_us = median_us(lambda f=function, a=address, n=count: f(None, a, n, None))  # type: ignore[misc]
            size_bytes = sum(array.nbytes for array in arrays)
            source, target = np.ones(size_bytes // 8, np.float32), np.empty(size_bytes // 8, np.float32)
            copy_us = median_us(lambda s=source, t=target: np.copyto(t, s))  # type: ignore[misc]
            print(f"{name:22s} {time_us:9.1f} us {size_bytes / time_us / 1e3:7.1f} GB/s   copy {size_bytes / copy_us / 1e3:7.1f} GB/s")


if __name__ == "__main__":
    main()
