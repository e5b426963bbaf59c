"""The common part of devices whose memory is the host's and whose steps are Python calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from runtime.devices import Arithmetic, Files, Loaded
from runtime.plan import COPY_STEP, Buffer, Plan
from runtime.storage import Storage

Compute: TypeAlias = Callable[[int, Sequence[np.ndarray], np.dtype], np.ndarray]
"""Return the result of a step (by number) from its operands, as an array of its own and of this type."""


class Ieee:
    """IEEE 754 arithmetic: subnormal numbers (denormals) are kept."""

    can_flush = False

    def set_subnormals(self, *, keep: bool) -> int:
        return 0

    def restore(self, control: int) -> None:
        """Do nothing: no control was changed."""


class CommonDevice:
    """The answers of devices, unless they override them."""

    measured_on = ""
    keeps_time = False
    lists_plans = False

    @property
    def measured_key(self) -> str:
        return ""

    def stays_in_cache(self, weights_bytes: int) -> bool:
        return True

    def is_disturbed(self, threads: int) -> bool:
        return False

    def library_plans(self, loaded: Loaded) -> Sequence[str]:
        return ()

    def by_library_plan(self, plan: Plan, text: str) -> Plan:
        return plan

    def allocate(self, size_bytes: int) -> np.ndarray:
        return np.empty(size_bytes, np.uint8)

    def arithmetic(self, files: Files) -> Arithmetic:
        return Ieee()


@dataclass(frozen=True)
class HostDevice(CommonDevice):
    """A device whose steps are Python calls. ``open`` makes the plan's native steps, by number, ready to be computed."""

    name: str
    open: Callable[[Plan, frozenset[int]], Compute]
    is_timed: bool = False
    architecture: str = ""

    def key(self, threads: int) -> str:
        return f"{self.name} | estimated"

    def load(self, plan: Plan, weights: Mapping[str, np.ndarray], native: frozenset[int], *, threads: int, files: Files) -> HostProgram:
        return HostProgram(plan, weights, self.open(plan, native))


class HostMemory:
    """A program whose buffers lie in the host's memory, and whose launches return when their steps are done."""

    storage: Storage

    def read(self, buffer: Buffer) -> np.ndarray:
        return self.storage.view(buffer)

    def write(self, buffer: Buffer, value: np.ndarray) -> None:
        np.copyto(self.storage.view(buffer), value)

    def synchronise(self) -> None:
        """Do nothing: a launch returns when its steps are done."""


class HostProgram(HostMemory):
    """A plan whose steps run one by one."""

    implementations: Mapping[int, str] = {}

    def __init__(self, plan: Plan, weights: Mapping[str, np.ndarray], compute: Compute) -> None:
        self.plan, self._compute = plan, compute
        self.storage = Storage(plan, weights, lambda size_bytes: np.zeros(size_bytes, np.uint8))

    def bind(self, areas: Sequence[np.ndarray]) -> None:
        self.storage.bind(areas)

    def launch(self, first: int, last: int) -> None:
        for index in range(first, last):
            step = self.plan.steps[index]
            operands = [self.read(self.plan.buffers[i]) for i in step.inputs]
            output = self.plan.buffers[step.outputs[0]]
            is_copy = step.kind == COPY_STEP
            self.write(output, operands[0].copy() if is_copy else self._compute(index, operands, self.read(output).dtype))

    def time(self, count: int, *, evict: bool, weights_from_memory: bool) -> list[int]:
        """Time the Python calls, which says nothing about kernels (``Device.is_timed``)."""
        return [sum(self.profile(1)[0]) for _ in range(count)]

    def profile(self, count: int) -> list[list[int]]:
        return [[self._timed(index) for index in range(len(self.plan.steps))] for _ in range(count)]

    def _timed(self, index: int) -> int:
        started_ns = time.perf_counter_ns()
        self.launch(index, index + 1)
        return time.perf_counter_ns() - started_ns

    def close(self) -> None:
        """Leave everything to Python's own memory management."""
