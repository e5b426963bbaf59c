"""cuBLASLt: a plan's ``cublas`` step as one product with an epilogue, by the library's C functions.

The published bindings require a driver even to describe a product. These functions describe it anywhere, so that everything up to the
choice of a kernel is checked without a device.

The library assumes matrices in column-major order: a row-major result is the product of the operands, swapped and transposed. So nothing is
copied, and a bias along our columns is one along its rows, which its epilogue adds.
"""

from __future__ import annotations

import ctypes
import importlib.util
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

from runtime.devices.cuda.cudnn import EnginePlan, alignment_bytes, roles
from runtime.errors import ArtefactError, KernelError, LibraryMissing
from runtime.plan import Buffer

CUBLAS_STEP = "cublas"
WORKSPACE_BYTES = 32 << 20
"""Workspace that a product may have, in bytes: what the library recommends for Hopper."""

NAMES = ("libcublasLt.so.13", "libcublasLt.so.12")
"""The library's releases that have all functions called here, the newest first."""
REAL = 0
"""CUDA_R_32F."""
COMPUTE: Mapping[str, int] = {"float32": 68, "fp16": 74, "bf16": 75, "tf32": 77}
"""cublasComputeType_t by precision: CUBLAS_COMPUTE_32F, which uses no tensor core for float32 data, and _FAST_16F, _16BF, _TF32."""
TRANSPOSE_A, TRANSPOSE_B, EPILOGUE, BIAS_POINTER = 3, 4, 7, 8
"""Attributes of cublasLtMatmulDesc_t."""
BATCH_COUNT, BATCH_OFFSET = 5, 6
"""Attributes of cublasLtMatrixLayout_t."""
MOST_WORKSPACE = 1
"""CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES."""
LEAST_ALIGNMENT = 5
"""CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES; those of B, C and D follow."""
VECTOR_BYTES = 16
"""The alignment in bytes of the operands with which kernels were timed: a named kernel may load so many bytes at once."""
KNOBS: Mapping[str, tuple[int, type[ctypes.c_uint32 | ctypes.c_uint16]]] = {
    "TILE_ID": (1, ctypes.c_uint32), "SPLITK_NUM": (2, ctypes.c_uint32), "REDUCTION_SCHEME": (3, ctypes.c_uint32),
    "CTA_SWIZZLING": (4, ctypes.c_uint32), "CUSTOM_OPTION": (5, ctypes.c_uint32), "STAGES_ID": (6, ctypes.c_uint32),
    "INNER_SHAPE_ID": (7, ctypes.c_uint16), "CLUSTER_SHAPE_ID": (8, ctypes.c_uint16),
}  # fmt: skip
"""cublasLtMatmulAlgoConfigAttributes_t: the settings of a kernel of the library, by name."""
ENGINE = 0
"""CUBLASLT_ALGO_CONFIG_ID: which kernel it is."""
MOST_PLANS = 8
"""The number of kernels that the heuristics are asked for, for one product."""
EPILOGUES: Mapping[tuple[str, bool], int] = {
    ("", False): 1, ("relu", False): 2, ("", True): 4, ("relu", True): 6, ("gelu_tanh", False): 32, ("gelu_tanh", True): 36,
}  # fmt: skip
"""cublasLtEpilogue_t by activation and whether there is a bias; the library's Gelu is the one with a hyperbolic tangent."""


@dataclass(frozen=True)
class Matrix:
    """Equal matrices ``batch_stride`` apart: rows (or, transposed, columns) of ``leading`` elements one after the other."""

    batch: int
    batch_stride: int
    rows: int
    columns: int
    leading: int
    is_transposed: bool


def matrix(shape: Sequence[int], strides: Sequence[int]) -> Matrix | str:
    """Return a window of batches of matrices as the library describes them, or why it cannot describe them."""
    (rows, columns), (down, across) = shape[-2:], strides[-2:]
    batch = [(size, stride) for size, stride in zip(shape[:-2], strides[:-2], strict=True) if size > 1]
    for (_, outer), (size, inner) in pairwise(batch):
        if outer != size * inner:
            return "the batches do not lie one stride apart"
    count, step = math.prod(size for size, _ in batch), batch[-1][1] if batch else 0
    if across == 1 or columns == 1:
        leading = down if rows > 1 else columns
        if leading >= columns:
            return Matrix(count, step, rows, columns, leading, False)
    if down == 1 or rows == 1:
        leading = across if columns > 1 else rows
        if leading >= rows:
            return Matrix(count, step, rows, columns, leading, True)
    return "neither rows nor columns lie side by side"


@dataclass(frozen=True)
class Product:
    """A step as the library's arguments: ``left`` times ``right`` plus ``summand`` plus bias, through an activation."""

    left: Matrix
    right: Matrix
    result: Matrix
    summand: Matrix | None
    has_bias: bool
    activation: str
    precision: str


def product_of(spec: Mapping[str, Any], operands: Sequence[Buffer], output: Buffer) -> Product:
    """Return the product of a step; raises ArtefactError if the library does not support it."""
    by_role = roles(spec, operands)
    layouts = {name: matrix(each.shape, each.strides) for name, each in (*by_role.items(), ("dst", output)) if name != "bias"}
    for name, each in layouts.items():
        if isinstance(each, str):
            raise ArtefactError(f"cuBLASLt does not take {name}: {each}", fix="optimise the model again")
    kept = {name: each for name, each in layouts.items() if isinstance(each, Matrix)}
    left, right, result = kept["src"], kept["weights"], kept["dst"]
    fits = left.columns == right.rows and (left.rows, right.columns) == (result.rows, result.columns)
    if not fits or result.is_transposed or {left.batch, right.batch} - {result.batch}:
        raise ArtefactError("the sizes of a product do not fit each other", fix="optimise the model again")
    activation = next((each["algorithm"] for each in spec["post_ops"] if each["kind"] == "eltwise"), "")
    return Product(left, right, result, kept.get("summand"), "bias" in by_role, activation, spec.get("precision", "float32"))


def alignments(spec: Mapping[str, Any], operands: Sequence[Buffer], output: Buffer) -> tuple[int, int, int, int]:
    """Return the alignments in bytes of the library's matrices A, B, C and D; it assumes 256 by default."""
    by_role = roles(spec, operands)
    source, weights = by_role["src"], by_role["weights"]
    right, left, summand, result = (alignment_bytes(each) for each in (weights, source, by_role.get("summand", output), output))
    return right, left, summand, result


class _Algorithm(ctypes.Structure):
    _fields_ = [("data", ctypes.c_uint64 * 8)]


class _Heuristic(ctypes.Structure):
    _fields_ = [
        ("algorithm", _Algorithm), ("workspace_bytes", ctypes.c_size_t), ("state", ctypes.c_int),
        ("waves", ctypes.c_float), ("reserved", ctypes.c_int * 4),
    ]  # fmt: skip


def _read(lt: ctypes.CDLL, algorithm: _Algorithm) -> tuple[int, dict[str, int]]:
    """Return the number of a kernel of the library, and its settings."""

    def setting(attribute: int, kind: type[ctypes.c_uint32 | ctypes.c_uint16], name: str) -> int:
        value, written = kind(), ctypes.c_size_t()
        size = ctypes.c_size_t(ctypes.sizeof(value))
        places = ctypes.byref(algorithm), attribute, ctypes.byref(value), size, ctypes.byref(written)
        status = lt.cublasLtMatmulAlgoConfigGetAttribute(*places)
        _checked(status, f"reading {name} of a kernel")
        return int(value.value)

    engine = setting(ENGINE, ctypes.c_uint32, "the number")
    return engine, {name: setting(attribute, kind, name) for name, (attribute, kind) in KNOBS.items()}


@cache
def library() -> ctypes.CDLL:
    """Load the library: the one that pip installed, else the system's."""
    folders = _package_folders()
    for path in (*(f"{folder}/{name}" for name in NAMES for folder in folders), *NAMES):
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    raise LibraryMissing(f"{NAMES[0]} cannot be loaded", fix="pip install 'einsat[cuda]', or install the CUDA toolkit")


def _package_folders() -> list[str]:
    folders = []
    for package in ("nvidia.cu13", "nvidia.cublas"):
        try:
            spec = importlib.util.find_spec(package)
        except ModuleNotFoundError:
            continue
        folders += [f"{folder}/lib" for folder in (spec.submodule_search_locations or ())] if spec else []
    return folders


def _checked(status: int, call: str) -> None:
    if status != 0:
        raise KernelError(f"cuBLASLt: {call} failed with status {status}")


def new_handle() -> ctypes.c_void_p:
    """Return a handle of the library; it needs a device."""
    handle = ctypes.c_void_p()
    _checked(library().cublasLtCreate(ctypes.byref(handle)), "making a handle")
    return handle


class Call:
    """A product, described to the library; no device is needed until :meth:`choose` asks its heuristics for a kernel."""

    def __init__(self, product: Product, aligned: tuple[int, int, int, int]) -> None:
        self._product, self._aligned, self._lt = product, aligned, library()
        self._description = ctypes.c_void_p()
        self._compute = COMPUTE[product.precision]
        _checked(self._lt.cublasLtMatmulDescCreate(ctypes.byref(self._description), self._compute, REAL), "describing a product")
        # The library's first operand is our right one.
        self._describe(TRANSPOSE_A, ctypes.c_int32(product.right.is_transposed))
        self._describe(TRANSPOSE_B, ctypes.c_int32(product.left.is_transposed))
        self._describe(EPILOGUE, ctypes.c_int32(EPILOGUES[product.activation, product.has_bias]))
        self._layouts = [self._layout(each) for each in (product.right, product.left, product.summand or product.result, product.result)]
        self._chosen = _Heuristic()

    def _describe(self, attribute: int, value: Any) -> None:
        status = self._lt.cublasLtMatmulDescSetAttribute(self._description, attribute, ctypes.byref(value), ctypes.sizeof(value))
        _checked(status, f"attribute {attribute} of a product")

    def _layout(self, each: Matrix) -> ctypes.c_void_p:
        """Describe a matrix in columns: a row-major one is described as its transpose."""
        layout = ctypes.c_void_p()
        rows, columns = (each.rows, each.columns) if each.is_transposed else (each.columns, each.rows)
        status = self._lt.cublasLtMatrixLayoutCreate(
            ctypes.byref(layout), REAL, ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(each.leading)
        )
        _checked(status, f"describing {each}")
        for attribute, value in ((BATCH_COUNT, ctypes.c_int32(each.batch)), (BATCH_OFFSET, ctypes.c_int64(each.batch_stride))):
            status = self._lt.cublasLtMatrixLayoutSetAttribute(layout, attribute, ctypes.byref(value), ctypes.sizeof(value))
            _checked(status, f"attribute {attribute} of {each}")
        return layout

    def plans(self, handle: ctypes.c_void_p, workspace_bytes: int) -> list[EnginePlan]:
        """List the kernels that the library's heuristics propose within a workspace, the best first."""
        proposed = self._proposed(handle, workspace_bytes)
        listed = (EnginePlan(*_read(self._lt, each.algorithm), int(each.workspace_bytes)) for each in proposed)
        return list({plan.key: plan for plan in listed}.values())

    def _proposed(self, handle: ctypes.c_void_p, workspace_bytes: int, most: int = MOST_PLANS) -> list[_Heuristic]:
        preference, count, results = self.preference(workspace_bytes), ctypes.c_int(), (_Heuristic * most)()
        status = self._lt.cublasLtMatmulAlgoGetHeuristic(
            handle, self._description, *self._layouts, preference, most, results, ctypes.byref(count)
        )
        self._lt.cublasLtMatmulPreferenceDestroy(preference)
        if status != 0 or count.value == 0:
            raise KernelError(f"cuBLASLt has no kernel for a product (status {status})", where=repr(self._product))
        return [each for each in results[: count.value] if each.state == 0]

    def preference(self, workspace_bytes: int) -> ctypes.c_void_p:
        """Describe the kernels that are requested: those within a workspace that take operands aligned as these are."""
        preference = ctypes.c_void_p()
        _checked(self._lt.cublasLtMatmulPreferenceCreate(ctypes.byref(preference)), "describing a preference")
        values: list[tuple[int, Any]] = [(MOST_WORKSPACE, ctypes.c_uint64(workspace_bytes))]
        values += [(LEAST_ALIGNMENT + i, ctypes.c_uint32(each)) for i, each in enumerate(self._aligned)]
        for attribute, value in values:
            size = ctypes.c_size_t(ctypes.sizeof(value))
            status = self._lt.cublasLtMatmulPreferenceSetAttribute(preference, attribute, ctypes.byref(value), size)
            _checked(status, f"attribute {attribute} of a preference")
        return preference

    def choose(self, handle: ctypes.c_void_p, spec: Mapping[str, Any]) -> int:
        """Choose the kernel that a step names, else the one that the library ranks first; return its workspace in bytes.

        If operands are less aligned than those with which kernels were timed, the library chooses.
        """
        if spec.get("engine") is None or min(self._aligned) < VECTOR_BYTES:
            (self._chosen,) = self._proposed(handle, spec["workspace_bytes"], 1)
            return int(self._chosen.workspace_bytes)
        algorithm = ctypes.byref(self._chosen.algorithm)
        kinds = [ctypes.c_int(kind) for kind in (self._compute, *[REAL] * 5)]
        _checked(self._lt.cublasLtMatmulAlgoInit(handle, *kinds, ctypes.c_int(spec["engine"]), algorithm), f"kernel {spec['engine']}")
        for name, setting in spec["knobs"].items():
            attribute, kind = KNOBS[name]
            value = kind(setting)
            status = self._lt.cublasLtMatmulAlgoConfigSetAttribute(algorithm, attribute, ctypes.byref(value), ctypes.sizeof(value))
            _checked(status, f"setting {name} of kernel {spec['engine']} to {setting}")
        checked = _Heuristic()
        status = self._lt.cublasLtMatmulAlgoCheck(handle, self._description, *self._layouts, algorithm, ctypes.byref(checked))
        if status != 0:
            choices = ", ".join(f"{name}={value}" for name, value in spec["knobs"].items())
            what = f"cuBLASLt does not offer kernel {spec['engine']} ({choices}) for a step (status {status})"
            raise ArtefactError(what, fix="optimise the model again with times of this machine")
        return int(checked.workspace_bytes)

    def run(self, handle: ctypes.c_void_p, addresses: Mapping[str, int], workspace: int, workspace_bytes: int, stream: int) -> None:
        """Launch on a stream; ``addresses`` by role."""
        if self._product.has_bias:
            self._describe(BIAS_POINTER, ctypes.c_void_p(addresses["bias"]))
        alpha, beta = ctypes.c_float(1.0), ctypes.c_float(float(self._product.summand is not None))
        a, b, c, d = self._layouts
        result = ctypes.c_void_p(addresses["dst"])
        summand = ctypes.c_void_p(addresses.get("summand", addresses["dst"]))
        status = self._lt.cublasLtMatmul(
            handle, self._description, ctypes.byref(alpha), ctypes.c_void_p(addresses["weights"]), a, ctypes.c_void_p(addresses["src"]), b,
            ctypes.byref(beta), summand, c, result, d, ctypes.byref(self._chosen.algorithm),
            ctypes.c_void_p(workspace), ctypes.c_size_t(workspace_bytes), ctypes.c_void_p(stream),
        )  # fmt: skip
        _checked(status, "a product")

    def close(self) -> None:
        """Free the descriptions."""
        for layout in self._layouts:
            self._lt.cublasLtMatrixLayoutDestroy(layout)
        self._layouts = []
        self._lt.cublasLtMatmulDescDestroy(self._description)
