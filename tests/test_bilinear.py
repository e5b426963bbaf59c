"""Bilinear algorithms: exact identities, bounded error, and programs that compute what the operator computes."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from egraph.derive.bilinear.cook_toom import cook_toom


@pytest.mark.parametrize("taps", range(1, 8))
@pytest.mark.parametrize("outputs", range(1, 7))
def test_cook_toom_is_exact(outputs: int, taps: int) -> None:
    f = cook_toom(outputs, taps)
    for p in range(outputs):
        for i in range(f.products):
            for r in range(taps):
                total = sum(f.a[p][xi] * f.b[xi][i] * f.g[xi][r] for xi in range(f.products))
                assert total == (i == p + r)


@pytest.mark.parametrize("taps", range(2, 8))
@pytest.mark.parametrize("outputs", range(2, 7))
def test_transforms_of_data_are_exact_in_float32(outputs: int, taps: int) -> None:
    f = cook_toom(outputs, taps)
    for value in (v for row in (*f.a, *f.b) for v in row):
        assert float(np.float32(float(value))) == value


@pytest.mark.parametrize(("outputs", "taps"), [(2, 3), (4, 3), (6, 3), (4, 5), (6, 7)])
def test_error_stays_below_its_bound(outputs: int, taps: int) -> None:
    f, random = cook_toom(outputs, taps), Random(1)
    a, b = (np.array([[float(v) for v in row] for row in matrix], np.float32) for matrix in (f.a, f.b))
    g64 = np.array([[float(v) for v in row] for row in f.g])
    worst = 0.0
    for _ in range(200):
        d = np.array([random.uniform(-1, 1) for _ in range(f.products)], np.float32)
        w = np.array([random.uniform(-1, 1) for _ in range(taps)], np.float32)
        found = a @ ((g64 @ w).astype(np.float32) * (b @ d))
        exact = [float(np.dot(w.astype(np.float64), d[p : p + taps].astype(np.float64))) for p in range(outputs)]
        worst = max(worst, float(np.max(np.abs(found - exact))))
    roundings = 2 * f.products + 2  # one for each product and sum of the two transforms, one for U, one for the product itself
    assert 0 < worst <= roundings * 2**-24 * f.growth * taps
