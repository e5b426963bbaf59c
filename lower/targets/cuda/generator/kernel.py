"""What a generated kernel is: its text, how it is launched, and what the compiler says of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

OUTPUT = "out"
"""The name of the parameter that a kernel writes; ``in<k>`` is the operand of placeholder k."""


@dataclass(frozen=True)
class Launch:
    """A launch: pointers are given for ``parameters`` by name, in this order; ``shared_bytes`` are those of dynamic shared memory."""

    symbol: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    parameters: tuple[str, ...]


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

    @property
    def registers(self) -> int | None:
        """Return the registers a thread needs, None where nothing was compiled."""
        return self.report.registers if self.report else None

    @property
    def spill_bytes(self) -> int | None:
        """Return the bytes of registers that a thread keeps in memory, None where nothing was compiled."""
        return self.report.spill_bytes if self.report else None

    def to_json(self) -> dict[str, Any]:
        """Return everything but the text and the code."""
        return {"launches": [asdict(launch) for launch in self.launches], "report": asdict(self.report) if self.report else None}


def launches_from_json(content: Mapping[str, Any]) -> tuple[Launch, ...]:
    """Return the launches of ``GeneratedKernel.to_json()``, read back."""
    return tuple(
        Launch(each["symbol"], tuple(each["grid"]), tuple(each["block"]), each["shared_bytes"], tuple(each["parameters"]))
        for each in content["launches"]
    )
