"""DFT and STFT of known lengths, as products with the matrix of the transform or with those of its two factors."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from egraph.onnx.importer.elementwise import Handler
from egraph.onnx.importer.state import Call, NotCore, axis_of
from egraph.tensor import Node

MOST_ELEMENTS = 1 << 20
"""The largest number of elements of a matrix; longer transforms are left to onnxruntime."""
LEAST_GAIN = 3
"""The least factor of saved multiplications for which two products are worth the three changes of layout around them."""


def _as_real(matrix: np.ndarray, parts: int) -> np.ndarray:
    """Return [..., n * parts, k * 2] of complex [..., n, k]: the addend of each real (and imaginary) part to both parts of the result."""
    rows = [np.stack([matrix.real, matrix.imag], -1), np.stack([-matrix.imag, matrix.real], -1)][:parts]
    *lead, count, results = matrix.shape
    return np.stack(rows, -3).reshape(*lead, count * parts, results * 2)


def _roots(rows: np.ndarray, columns: np.ndarray, length: int, *, inverse: bool) -> np.ndarray:
    """Return exp(-+ 2 pi i rows columns / length), elementwise."""
    return np.asarray(np.exp((2j if inverse else -2j) * np.pi * (rows * columns % length / length)))


def _factors(length: int, parts: int, results: int) -> tuple[int, int] | None:
    """Return p and q, p q = length, with the fewest multiplications by two products; None if one product is as good."""
    multiplications = {
        (p, length // p): length * p * parts * 2 + length * min(length // p, -(-results // p)) * 4
        for p in range(2, length) if length % p == 0
    }
    if not multiplications:
        return None
    best = min(multiplications, key=lambda pair: (multiplications[pair], pair))
    return best if multiplications[best] * LEAST_GAIN <= length * parts * results * 2 else None


def _transformed(call: Call, x: Node, window: np.ndarray, results: int, *, inverse: bool) -> Node:
    """Return X [..., k, 2] of x [..., n, parts]: X[k] = sum_n window[n] x[n] w^(n k), w = exp(-+ 2 pi i / N), N the window's length."""
    length, parts = len(window), x.type.sizes[-1]
    factors = _factors(length, parts, results)
    return (
        _by_two_products(call, x, window, results, factors, inverse=inverse)
        if factors
        else _by_one_product(call, x, window, results, inverse=inverse)
    )


def _by_one_product(call: Call, x: Node, window: np.ndarray, results: int, *, inverse: bool) -> Node:
    """Multiply with all w^(n k)."""
    *lead, taken, parts = x.type.sizes
    if len(window) * parts * results * 2 > MOST_ELEMENTS:
        raise NotCore("a long transform")
    places = np.arange(taken)[:, None]
    matrix = _as_real(_roots(places, np.arange(results), len(window), inverse=inverse) * window[:taken, None], parts)
    product = call.apply("MatMul", call.reshape(x, (*lead, taken * parts)), call.like(matrix))
    return call.reshape(product, (*lead, results, 2))


def _by_two_products(call: Call, x: Node, window: np.ndarray, results: int, factors: tuple[int, int], *, inverse: bool) -> Node:
    """Multiply by w^((q a + b) (c + p d)) = w^((q a + b) c) w^(p b d), over a < p and then over b < q (Cooley and Tukey, 1965)."""
    (p, q), (*lead, taken, parts) = factors, x.type.sizes
    rows_of_results = -(-results // p)
    if q * p * parts * p * 2 > MOST_ELEMENTS:
        raise NotCore("a long transform")
    if taken < len(window):
        before, after = (0,) * (len(lead) + 2), (*(0 for _ in lead), len(window) - taken, 0)
        x = call.apply("Pad", x, before=before, after=after, mode="constant", value=0.0)
    place = q * np.arange(p) + np.arange(q)[:, None]
    first = _roots(place[..., None], np.arange(p), len(window), inverse=inverse) * window[place][..., None]
    second = _roots(np.arange(q)[:, None], np.arange(rows_of_results), q, inverse=inverse)
    rows = int(np.prod(lead))
    x = call.transpose(call.reshape(x, (rows, p, q, parts)), (2, 0, 1, 3))
    x = call.apply("MatMul", call.reshape(x, (q, rows, p * parts)), call.like(_as_real(first, parts)))
    x = call.transpose(call.reshape(x, (q, rows, p, 2)), (1, 2, 0, 3))
    x = call.apply("MatMul", call.reshape(x, (rows, p, q * 2)), call.like(_as_real(second, 2)))
    x = call.transpose(call.reshape(x, (rows, p, rows_of_results, 2)), (0, 2, 1, 3))
    x = call.reshape(x, (*lead, rows_of_results * p, 2))
    if rows_of_results * p > results:
        rank = len(lead) + 2
        x = call.apply("Slice", x, starts=(0,) * rank, ends=(*lead, results, 2), steps=(1,) * rank)
    return x


def _dft(call: Call) -> Node:
    """sum_n x_n exp(-+ 2 pi i k n / N), of N numbers along an axis, truncated or padded with zeros"""
    shape, inverse, onesided = call.shape(0), bool(call.attribute("inverse", 0)), bool(call.attribute("onesided", 0))
    rank, parts = len(shape), shape[-1]
    given = call.attribute("axis", 1) if call.opset < 20 else int(call.known(2).reshape(())) if call.has(2) else -2
    axis = axis_of(int(given), rank)
    if rank < 2 or parts not in (1, 2) or axis == rank - 1 or (inverse and onesided):
        raise NotCore("another form of the transform")
    length = int(call.known(1).reshape(())) if call.has(1) else shape[axis]
    order = [*(k for k in range(rank - 1) if k != axis), axis, rank - 1]
    signal, taken = call.transpose(call[0], order), min(length, shape[axis])
    if taken < shape[axis]:
        starts, ends = (0,) * rank, (*signal.type.sizes[:-2], taken, parts)
        signal = call.apply("Slice", signal, starts=starts, ends=ends, steps=(1,) * rank)
    scale = np.full(length, 1 / length if inverse else 1.0)
    result = _transformed(call, signal, scale, length // 2 + 1 if onesided else length, inverse=inverse)
    return call.transpose(result, [order.index(k) for k in range(rank)])


def _stft(call: Call) -> Node:
    """The transforms of overlapping frames, each multiplied by the window"""
    shape, step = call.shape(0), int(call.known(1).reshape(()))
    window = call.known(2) if call.has(2) else None
    length = int(call.known(3).reshape(())) if call.has(3) else len(window) if window is not None else 0
    if len(shape) not in (2, 3) or (len(shape) == 3 and shape[2] != 1) or not 0 < length <= shape[1] or step < 1:
        raise NotCore("another form of the signal")
    if window is not None and len(window) != length:
        raise NotCore("the window is not as long as a frame")
    onesided = bool(call.attribute("onesided", 1))
    starts = np.arange((shape[1] - length) // step + 1) * step
    places = starts[:, None] + np.arange(length)
    if places.nbytes > call.state.fold_limit_bytes:
        raise NotCore("the places take more than constants may")
    frames = call.apply("Gather", call.reshape(call[0], shape[:2]), call.constant(places, "int64"), axis=1)
    weights = np.ones(length) if window is None else np.asarray(window, np.float64)
    return _transformed(
        call, call.reshape(frames, (*frames.type.sizes, 1)), weights, length // 2 + 1 if onesided else length, inverse=False)


HANDLERS: Mapping[str, Handler] = {"DFT": _dft, "STFT": _stft}
