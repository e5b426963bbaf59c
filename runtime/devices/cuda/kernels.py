"""The file of generated kernels that an artefact carries: text, code for one architecture, and how each is launched."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.errors import ArtefactError

FILE = "kernels.json"
GENERATED_STEP = "cuda"
"""The kind of steps that launch generated kernels; ``symbol`` in their recipe is the kernel's name in the file."""

OUTPUT, SCRATCH = "out", "scratch"
"""The names of the parameters for a kernel's result, and for memory in which its launches pass on intermediate results."""


@dataclass(frozen=True)
class Launch:
    """One launch. ``parameters`` are pointers by name, in order: ``in<k>`` is the step's input k, ``out`` its output."""

    symbol: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    parameters: tuple[str, ...]

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def written(self) -> int:
        """Return the position of the parameter that it writes."""
        return self.parameters.index(OUTPUT if OUTPUT in self.parameters else SCRATCH)


@dataclass(frozen=True)
class Kernel:
    """A request's kernel: launches that follow each other. Without a compiler it has neither ``cubin`` nor ``architecture``."""

    text: str
    launches: tuple[Launch, ...]
    architecture: str = ""
    registers: int = 0
    cubin: bytes | None = None
    scratch_bytes: int = 0

    def stored(self) -> dict[str, Any]:
        """Return the kernel as JSON data."""
        launches = [{**vars(launch)} for launch in self.launches]
        code = base64.b64encode(self.cubin).decode() if self.cubin else None
        return {
            "text": self.text, "launches": launches, "architecture": self.architecture, "registers": self.registers, "cubin": code,
            "scratch_bytes": self.scratch_bytes,
        }  # fmt: skip


def write(path: Path, kernels: Mapping[str, Kernel]) -> None:
    """Write kernels by their names."""
    stored = {name: kernel.stored() for name, kernel in kernels.items()}
    path.write_text(json.dumps(stored, sort_keys=True, indent=1) + "\n", encoding="utf-8")


def read(path: Path) -> dict[str, Kernel]:
    """Read kernels by their names."""
    try:
        return {name: _kernel(each) for name, each in json.loads(path.read_text(encoding="utf-8")).items()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArtefactError(f"generated kernels cannot be read: {error}", where=str(path), fix="optimise the model again") from error


def _kernel(stored: Mapping[str, Any]) -> Kernel:
    launches = tuple(
        Launch(each["symbol"], tuple(each["grid"]), tuple(each["block"]), int(each["shared_bytes"]), tuple(each["parameters"]))
        for each in stored["launches"]
    )
    cubin = base64.b64decode(stored["cubin"]) if stored["cubin"] else None
    scratch_bytes = int(stored.get("scratch_bytes", 0))
    return Kernel(stored["text"], launches, stored["architecture"], int(stored["registers"]), cubin, scratch_bytes)
