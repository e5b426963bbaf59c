"""The interface of a program to CUDA: memory, streams, events, graphs, launches. One driver has a GPU; one records, executes and checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from runtime.devices.cuda.cudnn import EnginePlan
from runtime.devices.cuda.kernels import Kernel, Launch
from runtime.plan import Buffer

COMPUTE, COPIES = 0, 1
"""Streams: the computing one, and the one that moves inputs and outputs beside it."""
BRANCHES = (2, 3, 4)
"""Streams on which steps run beside those of the computing stream."""
STREAMS = (COMPUTE, COPIES, *BRANCHES)
ALIGNMENT_BYTES = 256
"""The alignment of the driver's own allocations, in bytes."""


@dataclass(frozen=True)
class Location:
    """A buffer in the device's memory: its window, and the address of the element at its offset."""

    buffer: Buffer
    address: int


class LibraryCall(Protocol):
    """A vendor library's call, planned before anything is captured."""

    @property
    def workspace_bytes(self) -> int: ...

    @property
    def unavailable_plan(self) -> str:
        """Return the requested plan, if the library does not offer it and runs its favourite instead; else an empty text."""


class Driver(Protocol):
    """CUDA, for one device and one program."""

    @property
    def l2_bytes(self) -> int:
        """Return the size of the cache that all multiprocessors share."""

    def allocate(self, size_bytes: int, purpose: str) -> int:
        """Return the address of new memory."""

    def upload(self, address: int, host: np.ndarray, stream: int) -> None:
        """Copy a contiguous host array to the device, in the order of the stream."""

    def download(self, host: np.ndarray, address: int, stream: int) -> None:
        """Copy from the device to a contiguous host array, in the order of the stream."""

    def load(self, name: str, kernel: Kernel) -> Any:
        """Load a generated kernel's code and return it."""

    def plan(self, kind: str, spec: Mapping[str, Any], operands: Sequence[Buffer], output: Buffer) -> LibraryCall:
        """Plan a library's call and return it."""

    def plans(self, kind: str, spec: Mapping[str, Any], operands: Sequence[Buffer], output: Buffer) -> Sequence[EnginePlan]:
        """List the plans of a library for a call, within its workspace, the library's own favourite first."""

    def launch(self, code: Any, launch: Launch, arguments: Sequence[Location], written: int, stream: int) -> None:
        """Launch a generated kernel; ``written`` is the position of the argument that it writes."""

    def call(self, call: Any, operands: Sequence[Location], output: Location, workspace: int, workspace_bytes: int, stream: int) -> None:
        """Run a library's call."""

    def copy(self, source: Location, target: Location, stream: int) -> None:
        """Copy elements from one window to another of the same shape."""

    def array(self, location: Location) -> Any:
        """Return a window as an array on the device, which other libraries take by DLPack without a copy."""

    def record(self, stream: int) -> Any:
        """Return an event after all work that the stream was given so far."""

    def wait(self, stream: int, event: Any) -> None:
        """Let a stream wait for an event."""

    def begin_capture(self, stream: int) -> None:
        """Capture the work of a stream instead of running it, and that of each stream that waits for a captured event."""

    def end_capture(self, stream: int) -> Any:
        """Return the captured work as a graph; the stream must have waited for all others."""

    def replay(self, graph: Any, stream: int) -> None:
        """Launch a graph."""

    def synchronise(self, stream: int) -> None:
        """Wait for a stream."""

    def elapsed_us(self, start: Any, end: Any) -> float:
        """Return the time between two completed events."""

    def close(self) -> None:
        """Free memory, code and handles."""
