"""DFT and STFT of lengths that are known, as products with the matrix of the transform."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from egraph.onnx.importer.elementwise import Handler
from egraph.onnx.importer.state import Call, NotCore, axis_of
from egraph.tensor import Node

MOST_ELEMENTS = 1 << 20
"""Elements of a matrix: longer transforms take longer as a product than by onnxruntime's fast algorithm."""


def _matrix(length: int, parts: int, results: int, *, inverse: bool) -> np.ndarray:
    """Return [length * parts, results * 2]: what each real (and imaginary) part adds to the real and imaginary parts of the result."""
    if length * parts * results * 2 > MOST_ELEMENTS:
        raise NotCore("a long transform")
    turns = np.outer(np.arange(length), np.arange(results)) % length / length
    cosine, sine = np.cos(2 * np.pi * turns), np.sin(2 * np.pi * turns) * (1 if inverse else -1)
    rows = [np.stack([cosine, sine], -1), np.stack([-sine, cosine], -1)][:parts]
    scale = 1 / length if inverse else 1.0
    return np.asarray(np.stack(rows, 1).reshape(length * parts, results * 2) * scale)


def _transformed(call: Call, x: Node, matrix: np.ndarray) -> Node:
    """Return [..., k, 2] of [..., n, parts]."""
    *lead, length, parts = x.type.sizes
    product = call.apply("MatMul", call.reshape(x, (*lead, length * parts)), call.like(matrix))
    return call.reshape(product, (*lead, matrix.shape[1] // 2, 2))


def _dft(call: Call) -> Node:
    """sum_n x_n exp(-+ 2 pi i k n / N), of N numbers along an axis, cut or filled up with zeros"""
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
    matrix = _matrix(length, parts, length // 2 + 1 if onesided else length, inverse=inverse)[: taken * parts]
    return call.transpose(_transformed(call, signal, matrix), [order.index(k) for k in range(rank)])


def _stft(call: Call) -> Node:
    """The transforms of overlapping frames, each times the window"""
    shape, step = call.shape(0), int(call.known(1).reshape(()))
    window = call.known(2) if call.has(2) else None
    length = int(call.known(3).reshape(())) if call.has(3) else len(window) if window is not None else 0
    if len(shape) not in (2, 3) or (len(shape) == 3 and shape[2] != 1) or not 0 < length <= shape[1] or step < 1:
        raise NotCore("another form of the signal")
    if window is not None and len(window) != length:
        raise NotCore("the window is not as long as a frame")
    onesided = bool(call.attribute("onesided", 1))
    matrix = _matrix(length, 1, length // 2 + 1 if onesided else length, inverse=False)
    if window is not None:
        matrix = matrix * np.asarray(window, np.float64)[:, None]
    starts = np.arange((shape[1] - length) // step + 1) * step
    places = starts[:, None] + np.arange(length)
    if places.nbytes > call.state.fold_limit_bytes:
        raise NotCore("the places take more than constants may")
    frames = call.apply("Gather", call.reshape(call[0], shape[:2]), call.constant(places, "int64"), axis=1)
    return _transformed(call, call.reshape(frames, (*frames.type.sizes, 1)), matrix)


HANDLERS: Mapping[str, Handler] = {"DFT": _dft, "STFT": _stft}
