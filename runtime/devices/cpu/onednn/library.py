"""oneDNN's C API through ctypes: find and load it, check every status, describe memory.

Handles are plain integers (the C pointers); ``Handles`` destroys what was created with it.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from runtime.devices.cpu import openmp
from runtime.devices.cpu.onednn import names
from runtime.errors import KernelError, LibraryMissing

Handle: TypeAlias = int
DISTRIBUTION = "onednn-cpu-gomp"
LIBRARY_NAME = "libdnnl.so.3"
Dimensions = ctypes.c_int64 * names.MOST_DIMENSIONS


class ExecutionArgument(ctypes.Structure):
    """dnnl_exec_arg_t"""

    _fields_ = [("argument", ctypes.c_int), ("memory", ctypes.c_void_p)]


class _Version(ctypes.Structure):
    _fields_ = [("major", ctypes.c_int), ("minor", ctypes.c_int), ("patch", ctypes.c_int), ("hash", ctypes.c_char_p)]


_POINTER, _INT, _FLOAT, _INT64, _OUT = ctypes.c_void_p, ctypes.c_int, ctypes.c_float, ctypes.c_int64, ctypes.POINTER(ctypes.c_void_p)
_SIGNATURES: dict[str, list[Any]] = {
    "engine_create": [_OUT, _INT, ctypes.c_size_t],
    "stream_create": [_OUT, _POINTER, ctypes.c_uint],
    "stream_destroy": [_POINTER],
    "stream_wait": [_POINTER],
    "memory_desc_create_with_strides": [_OUT, _INT, Dimensions, _INT, Dimensions],
    "memory_desc_create_with_tag": [_OUT, _INT, Dimensions, _INT, _INT],
    "memory_desc_clone": [_OUT, _POINTER],
    "memory_desc_destroy": [_POINTER],
    "memory_create": [_OUT, _POINTER, _POINTER, _POINTER],
    "memory_destroy": [_POINTER],
    "memory_set_data_handle": [_POINTER, _POINTER],
    "primitive_attr_create": [_OUT],
    "primitive_attr_destroy": [_POINTER],
    "primitive_attr_set_post_ops": [_POINTER, _POINTER],
    "primitive_attr_set_scratchpad_mode": [_POINTER, _INT],
    "post_ops_create": [_OUT],
    "post_ops_destroy": [_POINTER],
    "post_ops_append_eltwise": [_POINTER, _INT, _FLOAT, _FLOAT],
    "post_ops_append_binary": [_POINTER, _INT, _POINTER],
    "post_ops_append_prelu": [_POINTER, _INT],
    "primitive_desc_destroy": [_POINTER],
    "primitive_desc_query": [_POINTER, _INT, _INT, _POINTER],
    "primitive_create": [_OUT, _POINTER],
    "primitive_destroy": [_POINTER],
    "primitive_execute": [_POINTER, _POINTER, _INT, ctypes.POINTER(ExecutionArgument)],
    "convolution_forward_primitive_desc_create": [_OUT, _POINTER, _INT, _INT, *[_POINTER] * 4, *[Dimensions] * 4, _POINTER],
    "deconvolution_forward_primitive_desc_create": [_OUT, _POINTER, _INT, _INT, *[_POINTER] * 4, *[Dimensions] * 4, _POINTER],
    "matmul_primitive_desc_create": [_OUT, *[_POINTER] * 6],
    "pooling_forward_primitive_desc_create": [_OUT, _POINTER, _INT, _INT, _POINTER, _POINTER, *[Dimensions] * 5, _POINTER],
    "layer_normalization_forward_primitive_desc_create": [_OUT, _POINTER, _INT, *[_POINTER] * 3, _FLOAT, ctypes.c_uint, _POINTER],
    "lrn_forward_primitive_desc_create": [_OUT, _POINTER, _INT, _INT, _POINTER, _POINTER, _INT64, _FLOAT, _FLOAT, _FLOAT, _POINTER],
    "reduction_primitive_desc_create": [_OUT, _POINTER, _INT, _POINTER, _POINTER, _FLOAT, _FLOAT, _POINTER],
    "resampling_forward_primitive_desc_create": [_OUT, _POINTER, _INT, _INT, _POINTER, _POINTER, _POINTER, _POINTER],
    "binary_primitive_desc_create": [_OUT, _POINTER, _INT, *[_POINTER] * 4],
    "eltwise_forward_primitive_desc_create": [_OUT, _POINTER, _INT, _INT, _POINTER, _POINTER, _FLOAT, _FLOAT, _POINTER],
    "reorder_primitive_desc_create": [_OUT, *[_POINTER] * 5],
}


class Library:
    """The loaded library: ``call`` checks statuses, ``create`` returns new handles."""

    def __init__(self, library: ctypes.CDLL) -> None:
        library.dnnl_version.restype = ctypes.POINTER(_Version)
        version = library.dnnl_version().contents
        self.version = f"{version.major}.{version.minor}.{version.patch}"
        if version.major != 3:
            raise LibraryMissing(f"oneDNN {self.version} is not version 3", fix=f"pip install {DISTRIBUTION}==2023.2.0")
        for name, types in _SIGNATURES.items():
            getattr(library, f"dnnl_{name}").argtypes = types
        library.dnnl_memory_desc_get_size.argtypes = [_POINTER]
        library.dnnl_memory_desc_get_size.restype = ctypes.c_size_t
        library.dnnl_memory_desc_equal.argtypes = [_POINTER, _POINTER]
        library.dnnl_primitive_desc_query_md.argtypes = [_POINTER, _INT, _INT]
        library.dnnl_primitive_desc_query_md.restype = _POINTER
        self._library = library
        self.engine = self.create("engine_create", names.ENGINE_CPU, 0)

    def call(self, name: str, *arguments: Any) -> None:
        """Call ``dnnl_<name>``; raise KernelError with the status in words."""
        status = getattr(self._library, f"dnnl_{name}")(*arguments)
        if status != names.SUCCESS:
            raise KernelError(f"oneDNN {self.version}: {name} says {names.STATUS_NAMES.get(status, status)}")

    def create(self, name: str, *arguments: Any) -> Handle:
        """Call a function whose first argument receives a new handle."""
        handle = ctypes.c_void_p()
        self.call(name, ctypes.byref(handle), *arguments)
        return handle.value or 0

    def address(self, name: str) -> int:
        """Return the address of ``dnnl_<name>`` for native callers."""
        return ctypes.cast(getattr(self._library, f"dnnl_{name}"), ctypes.c_void_p).value or 0

    def size_bytes(self, descriptor: Handle) -> int:
        return int(self._library.dnnl_memory_desc_get_size(descriptor)) if descriptor else 0

    def equal(self, descriptor: Handle, other: Handle) -> bool:
        return bool(self._library.dnnl_memory_desc_equal(descriptor, other))

    def query_descriptor(self, primitive_descriptor: Handle, query: int, index: int = 0) -> Handle:
        """Return a memory descriptor that belongs to the primitive descriptor."""
        return self._library.dnnl_primitive_desc_query_md(primitive_descriptor, query, index) or 0

    def implementation(self, primitive_descriptor: Handle) -> str:
        """Return the name of the implementation that the library chose, as ``brgconv:avx512_core``."""
        text = ctypes.c_char_p()
        self.call("primitive_desc_query", primitive_descriptor, names.QUERY_IMPLEMENTATION, 0, ctypes.byref(text))
        return (text.value or b"").decode()


class Handles:
    """Owns handles; ``close`` destroys them, newest first."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self._owned: list[tuple[str, Handle]] = []

    def create(self, kind: str, name: str, *arguments: Any) -> Handle:
        """Create through ``dnnl_<name>`` and own the result; ``kind`` names its destroy function."""
        handle = self.library.create(name, *arguments)
        self._owned.append((f"{kind}_destroy", handle))
        return handle

    def close(self) -> None:
        while self._owned:
            name, handle = self._owned.pop()
            self.library.call(name, handle)


@dataclass(frozen=True, slots=True)
class Window:
    """The contents of a memory descriptor: element type, sizes and strides (in elements)."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def of_type(self, dtype: str) -> Window:
        """Return the window in which the same elements lie side by side, in the same order, in this type."""
        strides, step = [1] * len(self.shape), 1
        for axis in sorted(range(len(self.shape)), key=lambda axis: (self.strides[axis], -axis)):
            strides[axis] = step
            step *= self.shape[axis]
        return Window(dtype, self.shape, tuple(strides))

    def with_axes(self, shape: Sequence[int], strides: Sequence[int]) -> Window:
        return Window(self.dtype, tuple(shape), tuple(strides))


def dimensions(values: Sequence[int]) -> Any:
    return Dimensions(*values)


def describe(handles: Handles, window: Window, *, any_format: bool = False) -> Handle:
    """Create a memory descriptor with the window's strides, or with the layout left to the library."""
    if window.dtype not in names.DATA_TYPES:
        raise KernelError(f"oneDNN has no element type {window.dtype}")
    shape, strides = (window.shape, window.strides) if window.shape else ((1,), (1,))
    if len(shape) > names.MOST_DIMENSIONS:
        raise KernelError(f"oneDNN takes at most {names.MOST_DIMENSIONS} dimensions, not {len(shape)}")
    data_type = names.DATA_TYPES[window.dtype]
    if any_format:
        return handles.create("memory_desc", "memory_desc_create_with_tag", len(shape), dimensions(shape), data_type, names.FORMAT_TAG_ANY)
    return handles.create("memory_desc", "memory_desc_create_with_strides", len(shape), dimensions(shape), data_type, dimensions(strides))


def candidates() -> list[str]:
    """Return the paths where the library may be, best first."""
    paths = [os.environ["EINSAT_ONEDNN"]] if "EINSAT_ONEDNN" in os.environ else []
    paths.append(str(Path(sys.prefix, "lib", LIBRARY_NAME)))
    try:
        files = importlib.metadata.files(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    paths += [str(file.locate()) for file in files if file.name == LIBRARY_NAME]
    return [path for path in paths if Path(path).exists()] + [LIBRARY_NAME]


@functools.cache
def load() -> Library:
    """Load oneDNN once a process."""
    openmp.pool()  # before oneDNN, which looks for libgomp itself
    problems = []
    for path in candidates():
        try:
            library = ctypes.CDLL(path)
            openmp.lead_to_pool(library)
            return Library(library)
        except OSError as error:
            problems.append(str(error))
    raise LibraryMissing("oneDNN cannot be loaded: " + "; ".join(problems), fix=f"pip install {DISTRIBUTION}==2023.2.0")
