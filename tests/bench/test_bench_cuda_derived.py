"""The published programs are derived, proved, lowered to CUDA and right on the recorded device."""

from __future__ import annotations

from bench.cuda_derived import derived, measured, page
from bench.record import origin
from bench.searches import PUBLISHED


def test_a_published_program_is_lowered_and_right() -> None:
    row = measured(0, "cuda:h100")
    assert row.proved > 0 and "cublas.matmul" in row.derived and "cuda" in row.derived
    assert row.direct == "1 cuda", "a generated convolution, whose sum is cut into parts, takes less than cuDNN's"
    assert row.error is not None and row.error < 1e-5 and not row.spill_bytes
    assert row.direct_us > 0 and row.derived_us > 0 and row.name in page([row], origin(1, ["command"]))


def test_products_of_one_matrix_are_one_product() -> None:
    name, _, direct, proved = derived(len(PUBLISHED))
    assert name.startswith("three products") and len(direct) == 3 and len(proved) == 1
