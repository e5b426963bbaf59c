"""Devices: what runs a plan. Each has a folder here, whose ``device.py`` holds it under the name ``DEVICE``.

A device and its libraries are imported when they are requested: a plan names its device, and a machine needs no other.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from runtime.errors import ArtefactError

if TYPE_CHECKING:
    import numpy as np

    from runtime.plan import Buffer, Plan

NAMES = (
    "cpu",
    "reference",
    "cuda",
)  # fmt: skip
"""The names of devices; ``lower.targets`` has the target for each."""
DESCRIBED = ("cuda:h100", "cuda:h200", "cuda:a100")
"""Devices that need not be present: programs for them are executed and checked elsewhere, and nothing is timed."""
HOST = NAMES[0]
"""The default device: the processor that Python, onnxruntime and the measuring process run on."""


@dataclass(frozen=True)
class Files:
    """Where the code lies that a plan's steps call. ``carried`` finds a library of C functions that the artefact carries."""

    kernels: Path | None = None
    dispatcher: Path | None = None
    carried: Callable[[str], Path] | None = None


class Arithmetic(Protocol):
    """How a calling thread computes with subnormal numbers, if that can be chosen (``can_flush``)."""

    @property
    def can_flush(self) -> bool: ...

    def set_subnormals(self, *, keep: bool) -> int:
        """Keep subnormal numbers (denormals) in the calling thread, or flush them to zero; return what ``restore`` needs."""

    def restore(self, control: int) -> None:
        """Restore the calling thread's floating-point control."""


class Loaded(Protocol):
    """A plan on its device: memory, code, and timing. Steps that Python runs are not part of it."""

    implementations: Mapping[int, str]
    """The names of the code that the device's libraries chose, by step."""

    def bind(self, areas: Sequence[np.ndarray]) -> None:
        """Take the host memory of inputs and outputs, in the order of ``runtime.storage.Areas``."""

    def read(self, buffer: Buffer) -> np.ndarray:
        """Return a buffer's present contents; a view if the device's memory is the host's."""

    def write(self, buffer: Buffer, value: np.ndarray) -> None:
        """Copy a host array into a buffer."""

    def launch(self, first: int, last: int) -> None:
        """Run the steps from ``first`` to before ``last``."""

    def synchronise(self) -> None:
        """Wait until everything launched is done, and outputs lie in the memory that was bound."""

    def time(self, count: int, *, evict: bool, weights_from_memory: bool) -> list[int]:
        """Run all steps ``count`` times, under the conditions asked for; return nanoseconds a run."""

    def profile(self, count: int) -> list[list[int]]:
        """Run all steps ``count`` times; return nanoseconds a step for each run."""

    def close(self) -> None:
        """Free memory and code."""


class Device(Protocol):
    """A device, which runs plans."""

    @property
    def name(self) -> str:
        """Return the name by which plans and ``--device`` refer to it."""

    @property
    def is_timed(self) -> bool:
        """Return whether its clock measures kernels; if not, costs are estimates and reports mark them as such."""

    @property
    def keeps_time(self) -> bool:
        """Return whether the time of a program shows how fast the device is; it does not if programs are evaluated instead."""

    def key(self, threads: int) -> str:
        """Return the key of its measurements: equal only if times are comparable."""

    @property
    def measured_on(self) -> str:
        """Return the name of the device on which kernels for this one are measured, itself or one elsewhere; '' if there is none."""

    @property
    def measured_key(self) -> str:
        """Return the beginning of keys of measurements by other machines that hold for this device; '' if there are none."""

    @property
    def lists_plans(self) -> bool:
        """Return whether its libraries list several plans for one call, each to be timed."""

    def library_plans(self, loaded: Loaded) -> Sequence[str]:
        """Return the texts of the plans that a library lists for a program of one call, its favourite first."""

    def by_library_plan(self, plan: Plan, text: str) -> Plan:
        """Return a program whose library calls use one of the library's plans."""

    @property
    def architecture(self) -> str:
        """Return the architecture of generated code: on devices with an equal one such code runs, and takes as long."""

    def stays_in_cache(self, weights_bytes: int) -> bool:
        """Return whether a program's weights are still in a cache when it runs again."""

    def is_disturbed(self, threads: int) -> bool:
        """Return whether the machine is too disturbed to time anything."""

    def allocate(self, size_bytes: int) -> np.ndarray:
        """Return host memory for a run's results; its contents are undefined."""

    def arithmetic(self, files: Files) -> Arithmetic:
        """Return the arithmetic of Python's own thread, on which onnxruntime runs its steps."""

    def load(self, plan: Plan, weights: Mapping[str, np.ndarray], native: frozenset[int], *, threads: int, files: Files) -> Loaded:
        """Make a plan ready to run; ``native`` are the steps that Python does not run."""


@cache
def device(name: str) -> Device:
    """Return a device by its name; its libraries are imported now, or when a plan needs them."""
    if name not in (*NAMES, *DESCRIBED):
        fix = "run it with the version that wrote it, or optimise the model again"
        raise ArtefactError(f"there is no device {name!r}; there are {', '.join((*NAMES, *DESCRIBED))}", fix=fix)
    kind, _, described = name.partition(":")
    module = importlib.import_module(f"{__name__}.{kind}.device")
    opened: Device = module.DESCRIBED[described] if described else module.DEVICE
    return opened
