"""CUDA devices: the GPU of this machine, and described ones (``cuda:h100``), on which programs are recorded, executed and checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from runtime.devices import Files, Loaded
from runtime.devices.cuda.gpus import GPUS, Gpu
from runtime.devices.cuda.program import CudaProgram, planned_as
from runtime.devices.host import CommonDevice
from runtime.plan import Plan

ESTIMATING = ("nvidia-cudnn-frontend", "nvidia-cudnn-cu13", "nvidia-matmul-heuristics")
"""Packages that list plans for a described GPU and estimate its products; without them the estimates differ."""


MEASURED = "measured"
"""A part of the keys of times that a GPU has measured."""


class _PlanningDevice(CommonDevice):
    """A device whose libraries have several plans for one call, which are timed on a GPU."""

    measured_on = "cuda"
    lists_plans = True

    def library_plans(self, loaded: Loaded) -> Sequence[str]:
        return [plan.text for plan in loaded.library_plans()] if isinstance(loaded, CudaProgram) else ()

    def by_library_plan(self, plan: Plan, text: str) -> Plan:
        return replace(plan, steps=tuple(planned_as(step, text) for step in plan.steps))


@dataclass(frozen=True)
class RecordedDevice(_PlanningDevice):
    """A described GPU: nothing runs on a device, and nothing is timed."""

    name: str = "cuda"
    is_timed: bool = False
    gpu: Gpu = GPUS["h100"]

    @property
    def measured_key(self) -> str:
        return f"cuda:{self.gpu.name} | {MEASURED} | "

    @property
    def architecture(self) -> str:
        return self.gpu.architecture

    def key(self, threads: int) -> str:
        from runtime.profile.versions import MISSING, library_version  # SQLite: not needed to run a plan

        installed = [f"{package} {version}" for package in ESTIMATING if (version := library_version(package)) != MISSING]
        return " | ".join([f"cuda:{self.gpu.name}", "recorded without a GPU", *([", ".join(installed)] if installed else []), "estimated"])

    def load(self, plan: Plan, weights: Mapping[str, np.ndarray], native: frozenset[int], *, threads: int, files: Files) -> CudaProgram:
        from runtime.devices.cuda.recorded import RecordedDriver, check_live_ranges

        check_live_ranges(plan)
        return CudaProgram(plan, weights, native, RecordedDriver(self.gpu), files.kernels)


@dataclass(frozen=True)
class CudaDevice(_PlanningDevice):
    """The GPU of this machine. Costs are estimates as long as no times of it are imported; job archives are measured on it."""

    name: str = "cuda"
    is_timed: bool = False
    keeps_time: bool = True

    @property
    def measured_key(self) -> str:
        return self.key(1)

    @property
    def architecture(self) -> str:
        from runtime.devices.cuda.cupy_driver import architecture

        return architecture()

    def key(self, threads: int) -> str:
        from runtime.devices.cuda.cupy_driver import device_name, library_versions

        name = device_name()
        kind = next((f"cuda:{gpu.name}" for gpu in GPUS.values() if gpu.is_called(name)), "cuda")
        return " | ".join([kind, MEASURED, name, *library_versions(), "replayed, evicted"])

    def load(self, plan: Plan, weights: Mapping[str, np.ndarray], native: frozenset[int], *, threads: int, files: Files) -> CudaProgram:
        from runtime.devices.cuda.cupy_driver import CupyDriver

        return CudaProgram(plan, weights, native, CupyDriver(), files.kernels)


DEVICE = CudaDevice()
DESCRIBED = {name: RecordedDevice(gpu=gpu) for name, gpu in GPUS.items()}
"""Devices by the name after the colon of ``--target cuda:NAME``."""
