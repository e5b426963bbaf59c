"""Run generated CUDA kernels on the processor, in every order of their threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from egraph.tensor import Node, placeholders
from egraph.tensor.ops.reference import evaluate
from lower.targets.cuda.generator import OUTPUT, SCRATCH, GeneratedKernel
from runtime.devices.cuda.shim import ORDERS, HostModule, compile_for_host

TOLERANCE = 1e-5
"""Relative error of an element; for sums that cancel, a tenth of it relative to the largest element."""


def compiled(kernels: Sequence[GeneratedKernel]) -> HostModule:
    """Compile kernels together."""
    return compile_for_host("\n".join(kernel.text for kernel in kernels))


def results(module: HostModule, kernel: GeneratedKernel, operands: Mapping[str, np.ndarray], out: np.ndarray) -> list[np.ndarray]:
    """Return what a kernel writes to ``out``, for each order of threads."""
    found = []
    for order in ORDERS:
        memory = {**operands, OUTPUT: out.copy(), SCRATCH: np.full(kernel.scratch_bytes // 4, np.nan, np.float32)}
        for launch in kernel.launches:
            arrays = [memory[name] for name in launch.parameters]
            module.launch(launch.symbol, launch.grid, launch.block, launch.shared_bytes, arrays, order, seed=1)
        found.append(memory[OUTPUT])
    return found


def by_name(fragment: Node, arrays: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """Return operands by the names of a kernel's parameters."""
    return {f"in{leaf.integer('index')}": np.ascontiguousarray(a) for leaf, a in zip(placeholders(fragment), arrays, strict=True)}


def expected(fragment: Node, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Return the fragment's value in float64."""
    with np.errstate(all="ignore"):
        return np.asarray(evaluate((fragment,), dict(zip(placeholders(fragment), arrays, strict=True)))[0])


def check(module: HostModule, kernel: GeneratedKernel, fragment: Node, arrays: Sequence[np.ndarray], tolerance: float = TOLERANCE) -> None:
    """Check that a kernel has its fragment's value in every order, with equal bits."""
    out = np.full(fragment.type.sizes, 7, fragment.type.dtype)
    found = results(module, kernel, by_name(fragment, arrays), out)
    assert len({each.tobytes() for each in found}) == 1, f"the order of threads decides: {fragment}"
    wanted = expected(fragment, arrays)
    scale = np.abs(wanted[np.isfinite(wanted)]).max(initial=0.0)
    np.testing.assert_allclose(
        found[0].astype(np.float64), wanted.astype(np.float64), rtol=tolerance, atol=tolerance * 0.1 * scale + 1e-30, err_msg=str(fragment)
    )
