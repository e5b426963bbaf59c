"""Load generated kernels and compare them with the float64 reference; fragments to test them on."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from egraph.tensor import Node, placeholders
from egraph.tensor.ops import OPS, apply
from egraph.tensor.ops.reference import evaluate
from tests.support.fragments import leaf

GUARD = 64
"""Number of elements around each output that must not change."""


class Argument(ctypes.Structure):
    _fields_ = (("type_index", ctypes.c_int32), ("zero", ctypes.c_uint32), ("pointer", ctypes.c_void_p))


class Environment(ctypes.Structure):
    _fields_ = (("sync_handle", ctypes.c_void_p), ("num_task", ctypes.c_int32))


Body = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.POINTER(Environment), ctypes.c_void_p)
Launch = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)


class Loaded:
    """A library loaded by its contract, with a launcher that runs all its tasks, or only one, one after another."""

    def __init__(self, path: Path, tasks: int = 2, *, only: int | None = None) -> None:
        self.code = ctypes.CDLL(str(path))
        self.launches = 0
        chosen = [only] if only is not None else list(reversed(range(tasks)))

        def launch(body: int, data: int, _: int) -> int:
            self.launches += 1
            environment = Environment(None, tasks)
            return max(int(Body(body)(k, ctypes.byref(environment), data)) for k in chosen)

        self.keep = Launch(launch)
        with contextlib.suppress(ValueError):
            ctypes.c_void_p.in_dll(self.code, "__TVMBackendParallelLaunch").value = ctypes.cast(self.keep, ctypes.c_void_p).value

    def run(self, symbol: str, arrays: Sequence[np.ndarray]) -> None:
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in arrays]
        arguments = (Argument * len(arrays))(*[Argument(7, 0, ctypes.addressof(p)) for p in pointers])
        function = self.code["__tvm_ffi_" + symbol]
        function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p)
        assert function(None, ctypes.addressof(arguments), len(arrays), None) == 0


def feeds(fragment: Node, seed: int = 0) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    result = []
    for operand in placeholders(fragment):
        positive = fragment.op in ("Sqrt", "Log", "Pow")
        values = random.standard_normal(operand.type.sizes)
        if operand.type.dtype in ("int8", "uint8"):
            limits = np.iinfo(operand.type.dtype)
            result.append(random.integers(limits.min, limits.max + 1, operand.type.sizes).astype(operand.type.dtype))
        elif operand.type.dtype == "bool" or "int" in operand.type.dtype:
            result.append(np.asarray(random.integers(0, 2, operand.type.sizes)).astype(operand.type.dtype))
        else:
            result.append(np.asarray(np.abs(values) + 0.1 if positive else values).astype(operand.type.dtype))
    return result


def check(loaded: Loaded, symbol: str, fragment: Node, tolerance: float = 2e-5) -> None:
    inputs = feeds(fragment)
    count = fragment.type.elements
    memory = np.full(count + 2 * GUARD, 7, fragment.type.dtype)
    output = memory[GUARD : GUARD + count].reshape(fragment.type.sizes)
    loaded.run(symbol, [*inputs, output])
    expected = np.asarray(evaluate((fragment,), dict(zip(placeholders(fragment), inputs, strict=True)))[0])
    assert (memory[:GUARD] == np.asarray(7, memory.dtype)).all() and (memory[GUARD + count :] == np.asarray(7, memory.dtype)).all()
    scale = np.abs(expected[np.isfinite(expected)]).max(initial=0.0)
    np.testing.assert_allclose(
        output.astype(np.float64), expected, rtol=tolerance, atol=tolerance * 0.1 * scale + 1e-30, err_msg=str(fragment)
    )


def samples(names: Sequence[str], count: int) -> list[Node]:
    random = Random(7)
    found: dict[Node, None] = {}
    for name in names:
        spec = OPS[name]
        for _ in range(count):
            shapes, attributes = spec.sample(random)
            dtypes = spec.sample_dtypes or ("float32",) * len(shapes)
            found[apply(name, *[leaf(i, *s, dtype=d) for i, (s, d) in enumerate(zip(shapes, dtypes, strict=True))], **attributes)] = None
    return list(found)


def chains() -> list[Node]:
    """Fragments of several operators, at sizes with tails, ones and primes."""
    x, wide = leaf(0, 2, 19, 7, 37), leaf(0, 3, 64, 17, 16)
    bias = leaf(1, 1, 19, 1, 1)
    shift: dict[str, Any] = {"before": (0, 0, 1, 2), "after": (0, 0, 0, 3), "mode": "constant", "value": 0.5}
    softmax = apply("Softmax", leaf(0, 5, 67), axis=1)
    norm = apply("LayerNormalization", leaf(0, 3, 131), leaf(1, 131), leaf(2, 131), axis=1, epsilon=1e-5)
    last = apply("Concat", leaf(0, 4, 5), leaf(1, 4, 3), axis=1)
    return [
        apply("Relu", apply("Add", x, bias)),
        apply("Transpose", apply("Mul", apply("Sigmoid", x), x), perm=(0, 2, 3, 1)),
        apply("Transpose", apply("Add", wide, leaf(1, 64, 1, 1)), perm=(0, 2, 3, 1)),
        apply("Add", apply("Transpose", leaf(0, 33, 21), perm=(1, 0)), leaf(1, 21, 33)),
        apply(
            "Reshape",
            apply("Transpose", apply("Reshape", leaf(0, 1, 12, 4, 6), shape=(1, 3, 2, 2, 4, 6)), perm=(0, 1, 4, 2, 5, 3)),
            shape=(1, 3, 8, 12),
        ),
        apply("Relu", apply("Pad", x, **shift)),
        apply("Pad", apply("Exp", x), **shift),
        apply("Mul", apply("Concat", x, apply("Neg", x), axis=1), leaf(1, 1, 38, 1, 1)),
        apply("Concat", softmax, apply("Slice", leaf(1, 5, 99), starts=(0, 98), ends=(5, -1), steps=(1, -3)), axis=1),
        apply("Tanh", norm),
        apply("Gelu", apply("Add", norm, leaf(3, 3, 131)), approximate="none"),
        apply("Softmax", apply("Add", leaf(0, 2, 3, 5, 8), leaf(1, 2, 1, 1, 8)), axis=3),
        apply("Softmax", leaf(0, 2, 33, 5, 9), axis=1),
        apply("Softmax", leaf(0, 67), axis=0),
        apply("ReduceMean", apply("Relu", leaf(0, 2, 5, 7, 67)), axes=(1, 2)),
        apply("ReduceMax", apply("Transpose", leaf(0, 6, 70), perm=(1, 0)), axes=(0,)),
        apply("Softmax", apply("Reshape", last, shape=(2, 16)), axis=1),
        apply("Gather", apply("Relu", leaf(0, 9, 20)), leaf(1, 3, 2, dtype="int64"), axis=0),
        apply("Exp", apply("GatherND", apply("Relu", leaf(0, 2, 9, 20)), leaf(1, 2, 5, 1, dtype="int64"), batch_dims=1)),
        apply("Exp", apply("GatherElements", apply("Relu", leaf(0, 3, 40)), leaf(1, 3, 23, dtype="int64"), axis=1)),
        apply("Where", apply("Less", leaf(0, 5, 33), leaf(1, 33)), leaf(2, 5, 33), apply("Neg", leaf(0, 5, 33))),
        apply("Cos", apply("Sin", apply("Mul", leaf(0, 50), leaf(1, 1)))),
        apply("MatMul", leaf(0, 3, 5, 33), leaf(1, 33, 18)),
        *transposed(),
    ]


def transposed() -> list[Node]:
    """Reductions over all axes of a transposed tensor, or all but its first, alone and together with the tensor."""
    one, several = apply("Transpose", leaf(0, 1, 9, 7, 20), perm=(0, 3, 1, 2)), apply("Transpose", leaf(0, 3, 9, 7, 20), perm=(0, 3, 1, 2))
    flat = apply("Reshape", one, shape=(1, 1, 1260))
    groups = apply("Reshape", several, shape=(3, 5, 252))
    return [
        apply("ReduceSum", one, axes=(1, 2, 3)),
        apply("ReduceMax", apply("Abs", several), axes=(1, 2, 3)),
        apply("InstanceNormalization", flat, leaf(1, 1), leaf(2, 1), epsilon=1e-5),
        apply("Reshape", apply("InstanceNormalization", groups, leaf(1, 5), leaf(2, 5), epsilon=1e-5), shape=(3, 20, 63)),
        apply("Sub", several, apply("ReduceMean", several, axes=(1, 2, 3))),
        apply("Sub", apply("Add", several, leaf(1, 3, 20, 9, 7)), apply("ReduceMin", several, axes=(1, 2, 3))),
    ]
