"""What a generated kernel is: its text, how it is launched, and what the compiler says of it."""

from __future__ import annotations

from dataclasses import dataclass

from runtime.devices.cuda.kernels import OUTPUT, SCRATCH, Launch

__all__ = ["OUTPUT", "SCRATCH", "GeneratedKernel", "Report"]


@dataclass(frozen=True)
class Report:
    """What the compiler says of a kernel for one architecture; ``occupancy`` is the part of its threads that one multiprocessor holds."""

    architecture: str
    registers: int
    spill_bytes: int
    stack_bytes: int
    shared_bytes: int
    occupancy: float


@dataclass(frozen=True)
class GeneratedKernel:
    """CUDA text with its launches, one after another; without a compiler there is no ``cubin`` and no ``report``."""

    text: str
    launches: tuple[Launch, ...]
    report: Report | None = None
    cubin: bytes | None = None
    scratch_bytes: int = 0
    """Memory by which launches pass on what they computed."""
