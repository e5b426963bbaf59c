"""Run CUDA text on the processor, to check what it computes: ``compile_for_host(text).launch(symbol, grid, block, 0, arrays)``.

``shim.h`` makes the threads of a block fibers. The text compiles unchanged but for ``__shared__``, which gets a section a kernel.
Results do not depend on the order in which threads run, unless a barrier is missing: run each kernel in all three ``ORDERS``.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from runtime.cache import ANOTHER_FOLDER, cache_folder
from runtime.errors import KernelError, LibraryMissing
from runtime.leftovers import PREFIX, owned_folder, remove_abandoned

HEADER = Path(__file__).with_name("shim.h")
FLAGS = ("-std=c++17", "-O1", "-shared", "-fPIC", "-ffp-contract=off", "-fno-math-errno", "-fno-sanitize=all", "-w")
ZIG_FOLDERS = ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR")
PATIENCE_SECONDS = 600.0
MESSAGE_BYTES = 400
Order: TypeAlias = Literal["ascending", "descending", "random"]
ORDERS: tuple[Order, ...] = get_args(Order)
"""The order in which the threads of a block run, and the blocks of a grid."""

WAITS = re.compile(r"__sync|__shfl|einsat_mma")
"""What a thread waits at."""
_KERNEL = re.compile(r"__global__\s+void\s+(?:__launch_bounds__\(\s*(\d+)[^)]*\)\s*)?(\w+)\s*\(([^)]*)\)\s*\{")


@dataclass(frozen=True)
class _Kernel:
    symbol: str
    most_threads: int
    parameters: tuple[str, ...]
    """Types of the parameters, all of them pointers."""
    waits: bool
    """Whether a thread may wait for others; where none does, all are run without switching between them."""


class HostModule:
    """Kernels compiled for the processor."""

    def __init__(self, library: Path, kernels: Sequence[_Kernel]) -> None:
        self._code = ctypes.CDLL(str(library))
        self._kernels = {kernel.symbol: kernel for kernel in kernels}
        self._running = Lock()  # threads and operands of a launch are the module's own

    @property
    def symbols(self) -> tuple[str, ...]:
        return tuple(self._kernels)

    def launch(
        self,
        symbol: str,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        arrays: Sequence[np.ndarray],
        order: Order = "ascending",
        *,
        seed: int = 0,
    ) -> None:
        """Run a kernel on ``arrays``, one a parameter and written in place; KernelError for what would be an error on a device."""
        kernel = self._kernels.get(symbol)
        if kernel is None:
            raise KernelError(f"the text has no kernel {symbol!r}", where=f"it has {', '.join(self._kernels)}")
        threads = block[0] * block[1] * block[2]
        if threads > kernel.most_threads:
            raise KernelError(f"a block of {threads} threads, of a kernel for at most {kernel.most_threads}", where=symbol)
        if shared_bytes:
            raise KernelError("dynamic shared memory is not simulated", where=symbol, fix="declare arrays of known size")
        if len(arrays) != len(kernel.parameters):
            raise KernelError(f"{len(arrays)} arrays for {len(kernel.parameters)} parameters", where=symbol)
        if any(not array.flags.c_contiguous for array in arrays):
            raise KernelError("an array is not contiguous", where=symbol)
        count = len(arrays)
        written = [not kind.startswith("const ") for kind in kernel.parameters]
        if any(each and not array.flags.writeable for each, array in zip(written, arrays, strict=True)):
            raise KernelError("an array that is written is read-only", where=symbol)
        addresses = [array.ctypes.data for array in arrays]
        for position, address in enumerate(addresses):  # an operand that the result overwrites is one array with it
            written[position] = any(w for w, a in zip(written, addresses, strict=True) if a == address)
        message, shared = ctypes.create_string_buffer(MESSAGE_BYTES), (ctypes.c_void_p * 2)()
        self._code[f"einsat_shared_{symbol}"](shared)
        with self._running:
            failed = self._code.einsat_launch(
                ctypes.cast(self._code[f"einsat_call_{symbol}"], ctypes.c_void_p), ctypes.c_int(kernel.waits),
                ctypes.c_void_p(shared[0]), ctypes.c_size_t((shared[1] or 0) - (shared[0] or 0)),
                (ctypes.c_uint * 3)(*grid), (ctypes.c_uint * 3)(*block), ctypes.c_int(count),
                (ctypes.c_void_p * count)(*addresses), (ctypes.c_size_t * count)(*(array.nbytes for array in arrays)),
                (ctypes.c_ubyte * count)(*written), ctypes.c_int(ORDERS.index(order)), ctypes.c_uint64(seed),
                message, ctypes.c_size_t(MESSAGE_BYTES),
            )  # fmt: skip
        if failed:
            raise KernelError(f"a kernel fails in {order} order: {message.value.decode()}", where=symbol)


def compile_for_host(text: str) -> HostModule:
    """Compile CUDA text, one kernel or many; what was compiled before is found in the cache."""
    source, kernels = _host_text(text)
    key = hashlib.sha256("\0".join([source, HEADER.read_text(), *FLAGS, *_compiler()]).encode()).hexdigest()[:16]
    library = cache_folder() / f"cuda-shim-{key}.so"
    if not library.exists():
        try:
            library.parent.mkdir(parents=True, exist_ok=True)
            _compile(source, library)
        except OSError as error:
            raise LibraryMissing(f"compiling CUDA text failed: {error}", where=str(library.parent), fix=ANOTHER_FOLDER) from error
    return HostModule(library, kernels)


def _compiler() -> list[str]:
    if importlib.util.find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "cc", "-nostdinc++"]
    for name in ("g++", "clang++", "c++"):
        if path := shutil.which(name):
            return [path]
    raise LibraryMissing("no C++ compiler to run CUDA text on this processor with", fix="pip install ziglang")


def _host_text(text: str) -> tuple[str, list[_Kernel]]:
    """Return the text for the processor, and its kernels."""
    parts, kernels = [f'#include "{HEADER}"\n#line 1\n'], []
    starts = list(_KERNEL.finditer(text))
    if not starts:
        raise KernelError("the text has no kernel")
    parts.append(text[: starts[0].start()])
    for match, following in zip(starts, [*starts[1:], None], strict=True):
        symbol = match[2]
        kinds = tuple(re.sub(r"\s*(__restrict__)?\s*\w+$", "", each.strip()) for each in match[3].split(","))
        if any(not kind.endswith("*") for kind in kinds):
            raise KernelError("a parameter is no pointer", where=symbol)
        piece = text[match.start() : following.start() if following else len(text)]
        kernels.append(_Kernel(symbol, int(match[1] or 1024), kinds, WAITS.search(parts[1] + piece) is not None))
        section = f'static __attribute__((section("einsat_shared_{len(kernels)}")))'
        parts.append(piece.replace("__shared__", section))
    for number, kernel in enumerate(kernels, 1):
        arguments = ", ".join(f"({kind})a[{position}]" for position, kind in enumerate(kernel.parameters))
        borders = [f"__{side}_einsat_shared_{number}" for side in ("start", "stop")]
        parts += [
            *(f'extern "C" __attribute__((weak, visibility("hidden"))) char {border}[];\n' for border in borders),
            f'extern "C" void einsat_shared_{kernel.symbol}(void **range) {{ range[0] = {borders[0]}; range[1] = {borders[1]}; }}\n',
            f'extern "C" void einsat_call_{kernel.symbol}(void **a) {{ {kernel.symbol}({arguments}); }}\n',
        ]
    return "".join(parts), kernels


def _compile(source: str, library: Path) -> None:
    """Compile beside and rename."""
    remove_abandoned(library.parent, f"{PREFIX}*")
    with owned_folder(library.parent, PREFIX) as folder:
        text, beside = folder / "kernels.cpp", folder / library.name
        text.write_text(source)
        command = [*_compiler(), *FLAGS, "-o", str(beside), str(text)]
        environment: Mapping[str, Any] = {variable: str(cache_folder() / "zig") for variable in ZIG_FOLDERS} | dict(os.environ)
        try:
            done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=PATIENCE_SECONDS, check=False)
        except subprocess.TimeoutExpired as error:
            raise LibraryMissing("compiling CUDA text did not end", where=" ".join(command), fix=ANOTHER_FOLDER) from error
        if done.returncode != 0:
            raise KernelError(f"CUDA text is refused: {done.stderr.strip()[:2000]}", where=" ".join(command))
        os.replace(beside, library)
