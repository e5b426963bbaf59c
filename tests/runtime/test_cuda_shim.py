"""The CUDA stand-in on the processor detects faults that a device would not forgive; every barrier of generated kernels is needed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.cuda_judge import BARRIER, without_barriers
from egraph.tensor import Node
from lower.eoperator.request import KernelRequest
from lower.targets.cuda.generator import OUTPUT, SCRATCH, GeneratedKernel, write
from runtime.devices.cuda import shim
from runtime.devices.cuda.shim import ORDERS, HostModule, Order, compile_for_host
from runtime.errors import KernelError
from tests.lower.test_cuda_generator import fragments
from tests.support.cuda_kernels import TOLERANCE, by_name, expected
from tests.support.kernels import feeds

ONE = (1, 1, 1)
TEXT = r"""
extern "C" __global__ void reversed(const float* in, float* out) {
  __shared__ float row[64];
  row[threadIdx.x] = in[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = row[63 - threadIdx.x];
}
extern "C" __global__ void unsynchronised(const float* in, float* out) {
  __shared__ float row[64];
  row[threadIdx.x] = in[threadIdx.x];
  out[threadIdx.x] = row[63 - threadIdx.x];
}
extern "C" __global__ void warp_sum(const float* in, float* out) {
  float sum = in[threadIdx.x];
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  out[threadIdx.x] = sum + __shfl_sync(0xffffffffu, in[threadIdx.x], 3) + __shfl_down_sync(0xffffffffu, in[threadIdx.x], 1)
                         + __shfl_up_sync(0xffffffffu, in[threadIdx.x], 2);
}
extern "C" __global__ void divergent(const float* in, float* out) {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
  out[threadIdx.x] = in[threadIdx.x];
}
extern "C" __global__ void left_early(const float* in, float* out) {
  if (threadIdx.x >= 40) return;
  __syncthreads();
  out[threadIdx.x] = in[threadIdx.x];
}
extern "C" __global__ void missing_lanes(const float* in, float* out) {
  if (threadIdx.x < 16) out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, in[threadIdx.x], 1);
}
extern "C" __global__ void not_in_mask(const float* in, float* out) {
  out[threadIdx.x] = __shfl_sync(0x0000ffffu, in[threadIdx.x], 0);
}
extern "C" __global__ void asks_outside(const float* in, float* out) {
  if (threadIdx.x < 16) out[threadIdx.x] = __shfl_xor_sync(0x0000ffffu, in[threadIdx.x], 16);
}
extern "C" __global__ void reads_behind(const float* in, float* out) { out[threadIdx.x] = in[threadIdx.x + 4096]; }
extern "C" __global__ void reads_before(const float* in, float* out) { out[threadIdx.x] = in[(int)threadIdx.x - 4096]; }
extern "C" __global__ void writes_behind(const float* in, float* out) { out[threadIdx.x + 2048] = in[threadIdx.x]; }
extern "C" __global__ void writes_beside(const float* in, float* out) { out[(int)threadIdx.x - 1] = in[threadIdx.x]; }
extern "C" __global__ void writes_input(const float* in, float* out) { ((float*)in)[threadIdx.x] = out[threadIdx.x]; }
extern "C" __global__ void writes_nowhere(const float* in, float* out) { *(float*)(unsigned long)(8 * threadIdx.x) = in[0]; }
extern "C" __global__ void hungry(const float* in, float* out) {
  __shared__ float much[13000];
  much[threadIdx.x] = in[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = much[63 - threadIdx.x];
}
extern "C" __global__ void deep(const float* in, float* out) {
  volatile float own[20000];
  for (int k = 19999; k >= 0; --k) own[k] = in[threadIdx.x];
  out[threadIdx.x] = own[0];
}
extern "C" __global__ void __launch_bounds__(32) bounded(const float* in, float* out) { out[threadIdx.x] = in[threadIdx.x]; }
static __device__ float exchanged(float value) { return __shfl_xor_sync(0xffffffffu, value, 1); }
extern "C" __global__ void waits_in_a_function(const float* in, float* out) { out[threadIdx.x] = exchanged(in[threadIdx.x]); }
extern "C" __global__ void numbered(const float* in, float* out) {
  unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  out[block * blockDim.x * blockDim.y * blockDim.z + thread] = in[thread] + block;
}
"""


@pytest.fixture(scope="module")
def module() -> HostModule:
    return compile_for_host(TEXT)


def run(module: HostModule, symbol: str, order: Order = "ascending", threads: int = 64) -> np.ndarray:
    out = np.zeros(64, np.float32)
    module.launch(symbol, ONE, (threads, 1, 1), 0, [np.arange(64, dtype=np.float32), out], order)
    return out


@pytest.mark.parametrize("order", ORDERS)
def test_threads_meet_at_barriers_and_shuffles(module: HostModule, order: Order) -> None:
    np.testing.assert_array_equal(run(module, "reversed", order), np.arange(64)[::-1])
    lane = np.arange(64) % 32
    base = np.arange(64) // 32 * 32
    sums = np.repeat([np.arange(32).sum(), np.arange(32, 64).sum()], 32)
    down, up = base + np.minimum(lane + 1, 31), base + np.where(lane < 2, lane, lane - 2)
    np.testing.assert_array_equal(run(module, "warp_sum", order), sums + base + 3 + down + up)
    out = np.zeros(6 * 64, np.float32)
    module.launch("numbered", (3, 1, 2), (4, 8, 2), 0, [np.arange(64, dtype=np.float32), out], order)
    np.testing.assert_array_equal(out, np.add.outer(np.arange(6), np.arange(64)).ravel())


def test_a_missing_barrier_shows(module: HostModule) -> None:
    """Memory that no thread wrote is NaN, so the fault shows in every order."""
    for order in ORDERS:
        assert np.isnan(run(module, "unsynchronised", order)).any()


FAULTS = {
    "divergent": "barrier of line", "left_early": "others are gone", "missing_lanes": "take no part", "not_in_mask": "not in the mask",
    "asks_outside": "lane 16", "reads_behind": "at byte 16384 of parameter 0", "reads_before": "of parameter 0",
    "writes_behind": "of parameter 1", "writes_beside": "written beside", "writes_input": "parameter 0 is written",
    "writes_nowhere": "belongs to no parameter", "hungry": "52000 bytes of shared memory", "bounded": "at most 32",
    "deep": "of a thread's own", "waits_in_a_function": "stands before another kernel",
}  # fmt: skip


@pytest.mark.parametrize("symbol", FAULTS)
def test_what_a_device_would_not_forgive_is_an_error(module: HostModule, symbol: str) -> None:
    with pytest.raises(KernelError, match=FAULTS[symbol]):
        run(module, symbol)
    np.testing.assert_array_equal(run(module, "reversed"), np.arange(64)[::-1])  # the next launch is not affected


def test_a_launch_returns_its_mappings() -> None:
    """A launch keeps no memory mappings, whether it fails or not.

    A process may have some 65,000 mappings, and a launch of 1,024 threads takes 2,000.
    """
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("this system does not list a process's mappings")
    before = len(maps.read_text().splitlines())
    module = compile_for_host(f"{TEXT}// loaded here and nowhere else\n")
    for order in ORDERS:
        run(module, "reversed", order)
        module.launch("numbered", ONE, (1024, 1, 1), 0, [np.arange(1024, dtype=np.float32), np.zeros(1024, np.float32)], order)
        with pytest.raises(KernelError):
            run(module, "reads_behind", order)
    assert len(maps.read_text().splitlines()) < before + 500


def test_a_launch_beyond_the_limits_is_an_error(module: HostModule) -> None:
    memory = [np.zeros(64, np.float32), np.zeros(64, np.float32)]
    for grid, block, shared_bytes, arrays in (
        (ONE, (1025, 1, 1), 0, memory), ((1, 65536, 1), (1, 1, 1), 0, memory), (ONE, (1, 1, 65), 0, memory), (ONE, ONE, 16, memory),
        (ONE, ONE, 0, memory[:1]), (ONE, ONE, 0, [memory[0], np.zeros((8, 8), np.float32).T]),
    ):  # fmt: skip
        with pytest.raises(KernelError):
            module.launch("reversed", grid, block, shared_bytes, arrays)
    with pytest.raises(KernelError, match="no kernel"):
        module.launch("another", ONE, ONE, 0, memory)


def test_text_that_is_no_kernel_is_refused() -> None:
    for text in ("int x;", 'extern "C" __global__ void f(int n) {}', 'extern "C" __global__ void f(float* out) { nonsense }'):
        with pytest.raises(KernelError):
            compile_for_host(text)


def test_other_processors_switch_by_the_system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shim, "FLAGS", (*shim.FLAGS, "-DEINSAT_UCONTEXT"))
    other = compile_for_host(TEXT)
    for order in ORDERS:
        np.testing.assert_array_equal(run(other, "reversed", order), np.arange(64)[::-1])
    with pytest.raises(KernelError, match="others are gone"):
        run(other, "left_early")


REDUNDANT: dict[str, str] = {}
"""Barriers without which results stay right, ``<symbol>:<position>``, with the reason why they stand there all the same."""


def is_noticed(module: HostModule, kernel: GeneratedKernel, suffix: str, fragment: Node) -> bool:
    """Return whether a kernel, whose symbols have a suffix, fails or gives a wrong result in some order."""
    arrays = feeds(fragment)
    wanted = expected(fragment, arrays)
    for order in ORDERS:
        memory = {**by_name(fragment, arrays), OUTPUT: np.zeros(fragment.type.sizes, fragment.type.dtype)}
        memory[SCRATCH] = np.full(kernel.scratch_bytes // 4, np.nan, np.float32)
        try:
            for launch in kernel.launches:
                operands = [memory[name] for name in launch.parameters]
                module.launch(f"{launch.symbol}{suffix}", launch.grid, launch.block, 0, operands, order)
        except KernelError:
            return True
        scale = np.abs(wanted).max()
        if not np.allclose(memory[OUTPUT].astype(np.float64), wanted, rtol=TOLERANCE, atol=TOLERANCE * scale):
            return True
    return False


def test_every_barrier_of_generated_kernels_is_needed() -> None:
    kernels = {fragment: write(KernelRequest(fragment)) for fragment in fragments()}
    changed = {fragment: without_barriers(kernel) for fragment, kernel in kernels.items() if BARRIER in kernel.text}
    module = compile_for_host("\n".join(text for texts in changed.values() for text, _ in texts))
    assert len(module.symbols) >= 12
    unnoticed = [
        f"{kernels[fragment].launches[0].symbol}:{k}"
        for fragment, texts in changed.items()
        for k, (_, suffix) in enumerate(texts)
        if not is_noticed(module, kernels[fragment], suffix, fragment)
    ]
    assert unnoticed == sorted(REDUNDANT)
