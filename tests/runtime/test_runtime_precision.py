"""Test library steps that read operands in another element type than the stored one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from runtime.devices.cpu import dispatcher as native
from runtime.devices.cpu.onednn import library as onednn
from runtime.devices.cpu.onednn import primitives
from runtime.errors import KernelError
from runtime.executable import Executable
from runtime.plan import Buffer, Port, Step
from tests.support.plans import buffer, draw, plan, run, transposed

BF16 = {"src": "bfloat16", "weights": "bfloat16"}


def rounded(array: np.ndarray) -> np.ndarray:
    return array.astype(ml_dtypes.bfloat16).astype(np.float64)


def run_or_skip(
    spec: dict[str, Any], operands: Sequence[Any], output: Buffer, *, weights: Sequence[int] = (), threads: int = 1
) -> np.ndarray:
    try:
        return run(spec, operands, output, weights=weights, threads=threads)
    except KernelError as error:
        if "not implemented" in error.what:
            pytest.skip(f"the library has no bf16 kernel on this processor: {error.what}")
        raise


def close(got: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(got, expected, rtol=0, atol=2e-6 * np.abs(expected).max())


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(("left", "right"), [((5, 64), (64, 33)), ((2, 3, 4, 32), (1, 1, 32, 6)), ((2, 3, 4, 32), (2, 3, 32, 6))])
def test_products_of_rounded_operands(left: tuple[int, ...], right: tuple[int, ...], packed: bool, threads: int) -> None:
    """relu(bf16(x) bf16(w) + bias), summed in float32: neither the bias nor the sum is rounded."""
    x, w, bias = draw(*left), draw(*right), draw(*(1,) * (len(left) - 1), right[-1])
    spec = {
        "primitive": "matmul", "arguments": {"src": 0, "weights": 1, "bias": 2}, "packed": ["weights"] if packed else [], "types": BF16,
        "post_ops": [{"kind": "eltwise", "algorithm": "relu"}],
    }  # fmt: skip
    expected = np.maximum(rounded(x) @ rounded(w) + bias, 0)
    got = run_or_skip(spec, [x, w, bias], buffer(expected.shape, "output", "y"), weights=[1, 2], threads=threads)
    close(got, expected)
    assert np.abs(got - np.maximum(x.astype(np.float64) @ w + bias, 0)).max() > 1e-4


def test_operands_that_lie_transposed_are_converted() -> None:
    x, w = draw(40, 8), draw(24, 40)
    (x_shape, x_strides), (w_shape, w_strides) = transposed(x.shape, (1, 0)), transposed(w.shape, (1, 0))
    spec = {"primitive": "matmul", "arguments": {"src": 0, "weights": 1}, "types": BF16}
    operands = [(x, buffer(x_shape, "input", strides=x_strides)), (w, buffer(w_shape, "input", strides=w_strides))]
    close(run_or_skip(spec, operands, buffer((8, 24), "output", "y")), rounded(x.T) @ rounded(w.T))


def test_convolution_of_rounded_operands() -> None:
    """A convolution with a 1x1 window is a product, channels last."""
    x, w = draw(2, 9, 8, 32), draw(48, 32, 1, 1)
    shape, strides = transposed(x.shape, (0, 3, 1, 2))
    out_shape, out_strides = transposed((2, 9, 8, 48), (0, 3, 1, 2))
    spec = {
        "primitive": "convolution", "strides": [1, 1], "dilations": [1, 1], "pads_before": [0, 0], "pads_after": [0, 0],
        "arguments": {"src": 0, "weights": 1}, "packed": ["weights"], "types": BF16,
    }  # fmt: skip
    operands = [(x, buffer(shape, "input", strides=strides)), (w, buffer(w.shape, "weight"))]
    got = run_or_skip(spec, operands, buffer(out_shape, "output", "y", strides=out_strides), weights=[1])
    close(got, np.einsum("nhwc,oc->nohw", rounded(x), rounded(w[:, :, 0, 0])))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 3, 1, 2)], ids=("channels first", "channels last"))
def test_convolution_of_split_operands(order: tuple[int, ...], threads: int) -> None:
    """relu(x * w + bias) as three bfloat16 products instead of one, where source and weights are stored in float32."""
    x, w, bias = draw(1, 24, 11, 9), draw(40, 24, 3, 3), draw(40)
    inverse = tuple(np.argsort(order))
    stored_x = np.ascontiguousarray(x.transpose(inverse))
    shape, strides = transposed(stored_x.shape, order)
    out_shape, out_strides = transposed(tuple((1, 40, 11, 9)[axis] for axis in inverse), order)
    spec = {
        "primitive": "convolution", "strides": [1, 1], "dilations": [1, 1], "pads_before": [1, 1], "pads_after": [1, 1],
        "arguments": {"src": 0, "weights": 1, "bias": 2}, "packed": ["weights"], "types": BF16, "split": True,
        "post_ops": [{"kind": "eltwise", "algorithm": "relu"}],
    }  # fmt: skip
    operands = [(stored_x, buffer(shape, "input", strides=strides)), (w, buffer(w.shape, "weight")), (bias, buffer(bias.shape, "weight"))]
    got = run_or_skip(spec, operands, buffer(out_shape, "output", "y", strides=out_strides), weights=[1, 2], threads=threads)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))).astype(np.float64)
    sums = sum(np.einsum("nchw,oc->nohw", padded[:, :, i : i + 11, j : j + 9], w[:, :, i, j]) for i in range(3) for j in range(3))
    expected = np.maximum(sums + bias[:, None, None], 0)
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    stored_x[(0,) * 4] = np.inf
    got = run_or_skip(spec, operands, buffer(out_shape, "output", "y", strides=out_strides), weights=[1, 2], threads=threads)
    reached = w[:, 0, 1, 1] > 0
    assert np.isinf(got[0, reached, 0, 0]).all() and not got[0, ~reached, 0, 0].any() and not np.isnan(got).any()


def split_numbers(numbers: np.ndarray, target: np.ndarray, record: native.SplitRecord, axes: Sequence[int]) -> None:
    for at, axis in enumerate(axes):
        record.shape[at] = numbers.shape[axis]
        record.source_strides[at], record.target_strides[at] = (array.strides[axis] // array.itemsize for array in (numbers, target))
    record.rank, record.source, record.target = len(axes), numbers.ctypes.data, target.ctypes.data
    native.load().split(record)


@pytest.mark.parametrize("lower", [0, 1])
@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize("rows", [7, 500])
def test_numbers_are_split_into_two(rows: int, is_transposed: bool, lower: int) -> None:
    """The first part is the nearest bfloat16 number, the second is nearest to the remainder. Infinities and NaN are in the first part."""
    numbers = draw(rows, 70)
    numbers[:6, 0] = [np.inf, -np.inf, np.nan, np.finfo(np.float32).max, -np.finfo(np.float32).max, 0.0]
    numbers[6, :] = np.array([0x3F808000, 0x3F818000, 0x7F800001, 0xBF808000, 0x7F7F8000], np.uint32).view(np.float32)[np.arange(70) % 5]
    target = np.zeros((rows, 3 * 70), ml_dtypes.bfloat16)
    source = np.asfortranarray(numbers) if is_transposed else numbers
    split_numbers(source, target, native.SplitRecord(lower=lower, block=70), (0, 1))
    blocks = [target[:, 70 * block : 70 * (block + 1)].astype(np.float32) for block in range(3)]
    low, (finite_high, high) = blocks[lower], [block for at, block in enumerate(blocks) if at != lower]
    np.testing.assert_array_equal(finite_high, np.where(np.isfinite(numbers), high, 0))
    with np.errstate(invalid="ignore"):
        nearest = numbers.astype(ml_dtypes.bfloat16).astype(np.float32)
    overflows = np.isinf(nearest) & np.isfinite(numbers)
    np.testing.assert_array_equal(high[~overflows], nearest[~overflows])
    assert np.isfinite(high[overflows]).all() and overflows.sum() >= 2
    finite = np.isfinite(numbers)
    np.testing.assert_allclose((high.astype(np.float64) + low)[finite], numbers[finite], rtol=2**-16, atol=0)
    assert not low[~finite].any()


def test_what_two_steps_convert_does_not_meet() -> None:
    """y = bf16(bf16(x) bf16(w)) bf16(v): both steps convert into one scratchpad, without overwriting the data of the primitives."""
    x, w, v = draw(128, 96), draw(96, 80), draw(80, 72)
    spec = {"primitive": "matmul", "arguments": {"src": 0, "weights": 1}, "types": BF16}
    buffers = [buffer((128, 96), "input", "x"), buffer((96, 80), "weight", "w"), buffer((80, 72), "weight", "v")]
    buffers += [buffer((128, 80), "arena"), buffer((128, 72), "output", "y")]
    steps = [Step("onednn", "first", (0, 1), (3,), spec), Step("onednn", "second", (3, 2), (4,), {**spec, "packed": ["weights"]})]
    made = plan(buffers, steps, [Port("x", "float32", (128, 96), 0)], [Port("y", "float32", (128, 72), 4)])
    try:
        executable = Executable(made, {"w": w, "v": v}, threads=2)
    except KernelError as error:
        pytest.skip(f"the library has no bf16 kernel on this processor: {error.what}")
    expected = rounded((rounded(x) @ rounded(w)).astype(np.float32)) @ rounded(v)
    for _ in range(3):
        got = executable.run({"x": x})["y"]
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-3 * np.abs(expected).max())
    executable.close()


def test_a_packed_operand_of_another_type_takes_half_the_memory() -> None:
    library = onednn.load()
    handles = onednn.Handles(library)
    spec = {"primitive": "matmul", "arguments": {"src": 0, "weights": 1}, "packed": ["weights"]}
    windows = [onednn.Window("float32", (64, 256), (256, 1)), onednn.Window("float32", (256, 512), (512, 1))]
    output = onednn.Window("float32", (64, 512), (512, 1))
    try:
        sizes = {}
        for name, types in (("float32", {}), ("bfloat16", BF16)):
            made = primitives.create(handles, {**spec, "types": types}, windows, output)
            sizes[name] = next(library.size_bytes(a.descriptor) for a in made.arguments if a.position == 1)
    except KernelError as error:
        pytest.skip(f"the library has no bf16 kernel on this processor: {error.what}")
    finally:
        handles.close()
    assert sizes == {"float32": 4 * 256 * 512, "bfloat16": 2 * 256 * 512}


def test_the_same_elements_side_by_side() -> None:
    """A window with gaps and permuted axes keeps the order of its axes and loses its gaps."""
    window = onednn.Window("float32", (2, 3, 4), (4, 100, 1)).of_type("bfloat16")
    assert (window.dtype, window.shape, window.strides) == ("bfloat16", (2, 3, 4), (4, 8, 1))
