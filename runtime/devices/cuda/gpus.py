"""Described GPUs, for which code is made without one: their properties by data sheets and drivers.

Limits and counts are those that the CUDA programming guide lists for the compute capability; clocks, memory and peaks are from NVIDIA's
data sheets (H100 SXM5 80 GB, H200 SXM 141 GB, A100 SXM4 80 GB). XLA's specifications of the same devices agree.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

WARP_THREADS = 32
MOST_BLOCK_THREADS = 1024
MOST_BLOCK = (1024, 1024, 64)
MOST_GRID = (2**31 - 1, 65535, 65535)
STATIC_SHARED_BYTES = 48 << 10
"""Shared memory that a block may have without requesting more, in bytes."""


@dataclass(frozen=True)
class Gpu:
    """A kind of GPU."""

    name: str
    """The name in ``--target cuda:NAME``."""
    full_name: str
    capability: tuple[int, int]
    multiprocessors: int
    shared_bytes: int
    """Shared memory that a block may have on request, in bytes."""
    memory_bytes: int
    l2_bytes: int
    clock_khz: int
    memory_clock_khz: int
    memory_gigabytes_s: float
    float32_gigaflops_s: float
    """The peak outside the tensor cores."""
    tf32_gigaflops_s: float
    """The peak of the tensor cores, for dense operands."""

    @property
    def architecture(self) -> str:
        """Return the architecture that code is compiled for: ``sm_90``."""
        return f"sm_{self.capability[0]}{self.capability[1]}"

    def is_called(self, name: str) -> bool:
        """Return whether a driver's name for a device denotes this kind: ``NVIDIA H200`` is an H200."""
        return self.name.upper() in re.split(r"[^A-Z0-9]+", name.upper())

    def cudnn_properties(self) -> str:
        """Return the description by which cuDNN plans for this GPU without one."""
        major, minor = self.capability
        return json.dumps({
            "deviceVer": 100 * major + 10 * minor, "deviceName": self.full_name, "multiProcessorCount": self.multiprocessors,
            "warpSize": WARP_THREADS, "maxSharedMemoryPerBlock": STATIC_SHARED_BYTES, "maxSharedMemoryPerBlockOptin": self.shared_bytes,
            "oversizedSharedMemoryPerBlock": 0, "reservedSharedMemoryPerBlock": 1024, "maxRegistersPerSM": 65536, "maxCtasPerSM": 32,
            "maxThreadsPerBlock": MOST_BLOCK_THREADS, "maxThreadsPerSM": 2048, "regsPerBlock": 65536, "totalGlobalMem": self.memory_bytes,
            "smClockRateKHz": self.clock_khz, "l2CacheSize": self.l2_bytes, "maxBlockSize": MOST_BLOCK,
            "memClockRateKHz": self.memory_clock_khz, "maxGridSize": MOST_GRID, "supportCoopLaunch": 1, "pciDeviceId": 0,
            "isTccDriver": 0, "cudaDeviceId": 0, "driverVer": 13000,
        })  # fmt: skip


H100 = Gpu(
    "h100", "NVIDIA H100 80GB HBM3", (9, 0), 132, 232448, 84942979072, 50 << 20, 1980000, 2619000,
    memory_gigabytes_s=3352, float32_gigaflops_s=66.9e3, tf32_gigaflops_s=494e3,
)  # fmt: skip
H200 = Gpu(
    "h200", "NVIDIA H200", (9, 0), 132, 232448, 150109880320, 60 << 20, 1980000, 3201000,
    memory_gigabytes_s=4800, float32_gigaflops_s=66.9e3, tf32_gigaflops_s=494e3,
)  # fmt: skip
A100 = Gpu(
    "a100", "NVIDIA A100-SXM4-80GB", (8, 0), 108, 166912, 84987740160, 40 << 20, 1410000, 1593000,
    memory_gigabytes_s=2039, float32_gigaflops_s=19.5e3, tf32_gigaflops_s=156e3,
)  # fmt: skip
GPUS: Mapping[str, Gpu] = {gpu.name: gpu for gpu in (H100, H200, A100)}


def gpu_of(features: Sequence[str]) -> Gpu:
    """Return the GPU that a target's features name."""
    return next(GPUS[name] for name in features if name in GPUS)
