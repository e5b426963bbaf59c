"""Compile CUDA text for an architecture: by NVRTC, which pip brings, or by a toolkit's nvcc; no device is needed."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from egraph.errors import LowerError
from lower.targets.cuda.generator.kernel import Report
from runtime.devices.cuda.kernels import Launch

MISSING = "neither NVRTC (pip install nvidia-cuda-nvrtc cuda-bindings) nor nvcc is installed"
OPTIONS = (b"--std=c++17", b"--ptxas-options=-v", b"-default-device")
"""What NVRTC is told besides the architecture."""
PATIENCE_SECONDS = 120.0
MESSAGE_CHARACTERS = 600


@dataclass(frozen=True)
class Multiprocessor:
    """What one multiprocessor of an architecture holds (CUDA C++ programming guide, technical specifications by compute capability)."""

    threads: int = 2048
    blocks: int = 32
    registers: int = 65536
    shared_bytes: int = 164 * 1024
    reserved_bytes: int = 1024
    """Shared memory that the system takes of each block."""
    register_unit: int = 256
    """Registers are given to warps in multiples of this."""


MULTIPROCESSORS = {"sm_80": Multiprocessor(), "sm_90": Multiprocessor(shared_bytes=228 * 1024)}
"""By architecture: A100; H100 and H200."""


def occupancy(processor: Multiprocessor, threads: int, registers: int, shared_bytes: int) -> float:
    """Return the part of a multiprocessor's threads that blocks of so many threads can occupy at once."""
    warps = -(-threads // 32)
    registers_of_warp = -(-registers * 32 // processor.register_unit) * processor.register_unit
    by_registers = processor.registers // max(1, registers_of_warp) // warps
    by_shared = processor.shared_bytes // (shared_bytes + processor.reserved_bytes)
    blocks = min(processor.blocks, processor.threads // (warps * 32), by_registers, by_shared)
    return blocks * warps * 32 / processor.threads


def compile_text(text: str, launches: Sequence[Launch], architecture: str) -> tuple[bytes, Report] | None:
    """Return the code and the compiler's report, None where no compiler is installed; LowerError where the text is refused."""
    compiled = compile_log(text, architecture)
    if compiled is None:
        return None
    code, log = compiled
    return code, report_of(log, launches, architecture)


def compile_log(text: str, architecture: str) -> tuple[bytes, str] | None:
    """Return the code and the compiler's log, None where no compiler is installed; LowerError where the text is refused."""
    if architecture not in MULTIPROCESSORS:
        raise LowerError(f"CUDA code for {architecture!r} is not known", fix=f"there are {', '.join(MULTIPROCESSORS)}")
    return _by_nvrtc(text, architecture) or _by_nvcc(text, architecture)


def report_of(log: str, launches: Sequence[Launch], architecture: str) -> Report:
    """Read what ptxas says of the launched kernels; of several, the most of each."""

    def most(pattern: str) -> int:
        return max((int(number) for number in re.findall(pattern, log)), default=0)

    registers, shared = most(r"Used (\d+) registers"), most(r"(\d+) bytes smem")
    threads = max(launch.threads for launch in launches)
    dynamic = max(launch.shared_bytes for launch in launches)
    return Report(
        architecture, registers, most(r"(\d+) bytes spill stores") + most(r"(\d+) bytes spill loads"), most(r"(\d+) bytes stack frame"),
        shared, occupancy(MULTIPROCESSORS[architecture], threads, registers, shared + dynamic),
    )  # fmt: skip


@cache
def _nvrtc() -> Any:
    try:
        return importlib.import_module("cuda.bindings.nvrtc")
    except ImportError:
        return None


def has_compiler() -> bool:
    """Return whether text can be compiled here."""
    return _nvrtc() is not None or shutil.which("nvcc") is not None


def _by_nvrtc(text: str, architecture: str) -> tuple[bytes, str] | None:
    nvrtc = _nvrtc()
    if nvrtc is None:
        return None
    try:
        program = _checked(nvrtc.nvrtcCreateProgram(text.encode(), b"kernel.cu", 0, [], []))
    except RuntimeError:  # the binding is installed, the library is not
        return None
    options = [f"--gpu-architecture={architecture}".encode(), *OPTIONS]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    log = bytes(_checked(nvrtc.nvrtcGetProgramLogSize(program)))
    nvrtc.nvrtcGetProgramLog(program, log)
    message = log.decode(errors="replace").rstrip("\0 \n")
    if int(status) != 0:
        nvrtc.nvrtcDestroyProgram(program)
        raise LowerError(f"NVRTC refuses a kernel: {message[:MESSAGE_CHARACTERS]}", where=architecture)
    code = bytes(_checked(nvrtc.nvrtcGetCUBINSize(program)))
    nvrtc.nvrtcGetCUBIN(program, code)
    nvrtc.nvrtcDestroyProgram(program)
    return code, message


def _checked(result: tuple[Any, ...]) -> Any:
    status, *values = result
    if int(status) != 0:
        raise RuntimeError(f"NVRTC: {status}")
    return values[0]


def _by_nvcc(text: str, architecture: str) -> tuple[bytes, str] | None:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        return None
    with tempfile.TemporaryDirectory(prefix="einsat-") as folder:
        source, code = Path(folder) / "kernel.cu", Path(folder) / "kernel.cubin"
        source.write_text(text)
        command = [nvcc, "-cubin", f"-arch={architecture}", "-std=c++17", "-Xptxas", "-v", "-o", str(code), str(source)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
        except subprocess.TimeoutExpired as error:
            raise LowerError("nvcc did not end", where=architecture) from error
        if done.returncode != 0:
            raise LowerError(f"nvcc refuses a kernel: {done.stderr.strip()[:MESSAGE_CHARACTERS]}", where=architecture)
        return code.read_bytes(), done.stderr
