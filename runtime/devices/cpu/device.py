"""This machine's processor as a device: the key of its measurements, and how it runs plans."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from functools import cache

import numpy as np

from runtime.cores import usable_cores
from runtime.devices import Files
from runtime.devices.cpu.caches import stay_in_cache
from runtime.devices.cpu.core_distance import share_one_core
from runtime.devices.cpu.dispatcher import Dispatcher
from runtime.devices.cpu.program import CpuProgram, load_dispatcher
from runtime.devices.host import CommonDevice
from runtime.plan import Plan
from runtime.processor import cpuinfo

LIBRARIES = ("onednn-cpu-gomp", "onnxruntime")
"""Packages whose version changes the times of kernels on this device."""


def processor_name() -> str:
    """Return the processor's marketing name, or the architecture if the system does not report it."""
    named = next((line for line in cpuinfo() if line.startswith("model name")), "")
    return " ".join(named.partition(":")[2].split()) if named else platform.processor() or platform.machine()


@cache
def device_key(threads: int) -> str:
    """Return ``cpu | <processor> | <n> cores | <library> <version>, ... | threads=<n> evicted``: equal only if times are comparable.

    The code generator of this project is not among the libraries, because times of its code are filed under ``generator_digest`` besides.

    ``evicted`` states how kernels are timed: with their operands outside the cores' own caches.
    """
    from runtime.profile.versions import library_version  # SQLite: not needed to run a plan

    libraries = ", ".join(f"{name} {library_version(name)}" for name in LIBRARIES)
    return f"cpu | {processor_name()} | {usable_cores()} cores | {libraries} | threads={threads} evicted"


class Cpu(CommonDevice):
    """This machine's processor."""

    name = "cpu"
    is_timed = True
    keeps_time = True
    measured_on = "cpu"

    def key(self, threads: int) -> str:
        return device_key(threads)

    @property
    def architecture(self) -> str:
        return processor_name()

    def stays_in_cache(self, weights_bytes: int) -> bool:
        return stay_in_cache(weights_bytes)

    def is_disturbed(self, threads: int) -> bool:
        return share_one_core(threads)

    def arithmetic(self, files: Files) -> Dispatcher:
        return load_dispatcher(files)

    def load(self, plan: Plan, weights: Mapping[str, np.ndarray], native: frozenset[int], *, threads: int, files: Files) -> CpuProgram:
        return CpuProgram(plan, weights, native, threads=threads, files=files)


DEVICE = Cpu()
