"""Measure a GPU's launches and memory accesses: the numbers from which its cost model starts.

Everything is timed inside replayed CUDA graphs. A launch is one of many consecutive empty kernels. Bytes are moved by a copy with loads
and stores of 16 bytes: from memory, through buffers that together are four times the cache, and from the cache, by copying the same buffer
again and again.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

TEXT = r"""
extern "C" __global__ void einsat_nothing() {}
extern "C" __global__ void __launch_bounds__(256) einsat_move(const float4* __restrict__ source, float4* __restrict__ target, int count) {
  for (int i = blockIdx.x * 256 + threadIdx.x; i < count; i += gridDim.x * 256) target[i] = source[i];
}
"""
SIZES_BYTES: Sequence[int] = tuple(1 << power for power in (13, 16, 18, 20, 21, 22, 23, 24, 25, 26, 28, 30))
"""Bytes that a kernel moves, read and written together."""
CHAIN = 200
"""Empty kernels in a graph."""
MOST_COPIES = 64
REPEATS = 15
BLOCKS_A_MULTIPROCESSOR = 8


def rates() -> dict[str, Any]:
    """Return the microseconds of a launch, and of moving each of ``SIZES_BYTES``, from memory and from the cache."""
    from runtime.devices.cuda.cupy_driver import library

    cupy = library()
    module = cupy.RawModule(code=TEXT, options=("--std=c++17",))
    nothing, move = module.get_function("einsat_nothing"), module.get_function("einsat_move")
    device = cupy.cuda.Device()
    blocks = BLOCKS_A_MULTIPROCESSOR * int(device.attributes["MultiProcessorCount"])
    cache_bytes = int(device.attributes["L2CacheSize"])
    stream, random = cupy.cuda.Stream(non_blocking=True), cupy.random.default_rng(0)

    def each_us(launches: Sequence[Callable[[], object]]) -> float:
        with stream:
            launches[0]()
            stream.synchronize()
            stream.begin_capture()
            for launch in launches:
                launch()
            graph = stream.end_capture()
            times_us: list[float] = []
            for _ in range(REPEATS):
                start = stream.record()
                graph.launch(stream)
                end = stream.record()
                stream.synchronize()
                times_us.append(1e3 * float(cupy.cuda.get_elapsed_time(start, end)))
        return statistics.median(times_us[2:]) / len(launches)

    def moving(size_bytes: int) -> Callable[[], object]:
        count = size_bytes // 32
        source = random.standard_normal(4 * count, dtype=cupy.float32)
        target = cupy.empty_like(source)
        grid = max(1, min(blocks, -(-count // 256)))
        return lambda: move((grid,), (256,), (source, target, cupy.int32(count)))

    from_memory, from_cache = [], []
    for size_bytes in SIZES_BYTES:
        copies = max(2, min(MOST_COPIES, 4 * cache_bytes // size_bytes))
        from_memory.append((size_bytes, each_us([moving(size_bytes) for _ in range(copies)])))
        if size_bytes <= cache_bytes // 2:
            from_cache.append((size_bytes, each_us([moving(size_bytes)] * 32)))
    return {"launch_us": each_us([lambda: nothing((1,), (32,), ())] * CHAIN), "from_memory_us": from_memory, "from_cache_us": from_cache}
