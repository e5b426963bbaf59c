"""Compare generated CUDA kernels, run on the processor in three thread orders, with the float64 reference; check what compilers report."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from bench.cuda_judge import reports_together
from egraph.errors import LowerError, TypeMismatch
from egraph.tensor import Node, Target, TensorType, make, placeholder, placeholders, rewrite, walk
from egraph.tensor.ops import OPS, apply
from egraph.tensor.ops.reference import evaluate
from lower.cost.rounding import ROUNDED_OPERATORS, usual_error
from lower.eoperator.request import KernelRequest
from lower.targets.cuda.generator import GeneratedKernel, compiler, constant_orders, generate, multiplies_in, supports, write
from lower.targets.cuda.generator.compiler import MISSING, MULTIPROCESSORS, compile_text, has_compiler, occupancy
from lower.targets.cuda.generator.generate import compile_unspilled
from lower.targets.cuda.generator.kernel import Report
from runtime.devices.cuda import kernels as kernel_file
from runtime.devices.cuda.kernels import Launch
from runtime.devices.cuda.meaning import rounded
from runtime.devices.cuda.shim import HostModule
from tests.lower.test_eoperator import IN_PLACE, LONG, LONG_EXTREMA, MASK, SOFTMAX, STRIDED, WHOLE, WITH_NAN
from tests.support.cuda_kernels import by_name, check, compiled, expected, results
from tests.support.fragments import leaf
from tests.support.kernels import chains, feeds, samples

ARCHITECTURES = tuple(MULTIPROCESSORS)
needs_compiler = pytest.mark.skipif(not has_compiler(), reason=MISSING)
Kernels = dict[Node, GeneratedKernel]


WEIGHED = apply("MatMul", apply("Softmax", leaf(0, 2050, 1, 9), axis=2), leaf(1, 2050, 9, 33))
"""Values that are weighed by what a softmax gives, one vector of weights a row."""


def products() -> list[Node]:
    """Return fragments computed in tiles: products (with prologue and epilogue, batched, transposed) and convolutions."""
    taps: dict[str, Any] = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 1}
    tokens = apply("Add", apply("MatMul", apply("Relu", leaf(0, 3, 70, 50)), leaf(1, 50, 67)), leaf(2, 67))
    return [
        apply("Gelu", tokens, approximate="none"),
        apply("MatMul", leaf(0, 2, 64, 64), leaf(1, 2, 64, 128)),
        apply("MatMul", apply("Transpose", leaf(0, 37, 90), perm=(1, 0)), leaf(1, 37, 40)),
        apply("Transpose", apply("MatMul", leaf(0, 65, 33), leaf(1, 33, 129)), perm=(1, 0)),
        apply("Relu", apply("Conv", leaf(0, 1, 9, 13, 11), leaf(1, 40, 9, 3, 3), layout="NCHW", **taps)),
        apply("Conv", leaf(0, 2, 7, 8, 12), leaf(1, 33, 12, 3, 3), layout="NHWC", **taps),
        *in_parts(),
    ]


def in_parts() -> list[Node]:
    """Return products with few rows and columns and long sums, which are cut into parts."""
    taps: dict[str, Any] = {"strides": (2, 2), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 1, "layout": "NCHW"}
    convolution = apply("Conv", leaf(0, 1, 100, 13, 13), leaf(1, 36, 100, 3, 3), **taps)
    return [
        apply("Relu", apply("Add", convolution, leaf(2, 1, 36, 1, 1))),
        apply("Transpose", apply("MatMul", leaf(0, 2, 40, 700), leaf(1, 2, 700, 33)), perm=(0, 2, 1)),
        apply("Relu", apply("ConvTranspose", leaf(0, 1, 48, 6, 6), leaf(1, 48, 33, 4, 4), output_padding=(0, 0), **taps)),
    ]


def multiplied(precision: str) -> dict[Node, GeneratedKernel]:
    """Return products on tensor cores; the prologue is computed before the operands are rounded."""
    return {fragment: write(KernelRequest(fragment, precision=precision)) for fragment in products()}


def with_rounded_operands(fragment: Node, arrays: Sequence[np.ndarray], precision: str) -> np.ndarray:
    """Return the value of a fragment whose product has rounded operands."""
    leaves = dict(zip(placeholders(fragment), arrays, strict=True))
    (product,) = (node for node in walk((fragment,)) if node.op in ROUNDED_OPERATORS)
    values = evaluate(product.inputs, leaves)
    stands = {
        placeholder(100 + i, operand.type): rounded(value.astype(np.float32), precision)
        for i, (operand, value) in enumerate(zip(product.inputs, values, strict=True))
    }

    def change(old: Node, operands: tuple[Node, ...]) -> Node:
        return make(old.op, tuple(stands) if old is product else operands, old.attributes, old.type)

    root = rewrite((fragment,), change)[fragment]
    return np.asarray(evaluate((root,), leaves | stands)[0])


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_products_on_tensor_cores_round_their_operands_and_nothing_else(precision: str) -> None:
    """All thread orders give equal bits. The only error is that of rounding the operands, and it stays within its bound."""
    kernels = multiplied(precision)
    module = compiled(list(kernels.values()))
    for fragment, kernel in kernels.items():
        assert kernel.text.count("__syncthreads") == 2 and multiplies_in(fragment, precision)
        arrays = feeds(fragment)
        meant, plain = with_rounded_operands(fragment, arrays, precision), expected(fragment, arrays)
        found = results(module, kernel, by_name(fragment, arrays), np.full(fragment.type.sizes, 7, np.float32))
        assert len({each.tobytes() for each in found}) == 1
        scale = np.abs(meant).max()
        np.testing.assert_allclose(found[0], meant, rtol=0, atol=2e-6 * scale, err_msg=str(fragment))
        error = np.abs(found[0] - plain)
        assert error.max() > 1e-5 * scale, "operands are rounded"
        assert np.sqrt((error**2).mean()) < 2 * usual_error(precision) * np.sqrt((plain**2).mean())


def test_what_is_out_of_range_in_fp16_is_infinite_and_what_is_small_loses_digits() -> None:
    fragment = apply("MatMul", leaf(0, 64, 32), leaf(1, 32, 64))
    kernel = write(KernelRequest(fragment, precision="fp16"))
    values = np.zeros((64, 32), np.float32)
    drawn = [65519.0, 65520.0, -1e9, 2.0**-24, 3 * 2.0**-26, 2.0**-26, 1 + 2.0**-11, np.nan, 6e-5]
    values[:, 0] = np.resize(np.array(drawn, np.float32), 64)
    ones = np.ones((32, 64), np.float32)
    (found, *_) = results(compiled([kernel]), kernel, {"in0": values, "in1": ones}, np.zeros((64, 64), np.float32))
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(found[:, 5], values[:, 0].astype(np.float16).astype(np.float32))


def test_float32_uses_no_tensor_core(kernels: Kernels) -> None:
    assert all("mma" not in kernel.text for kernel in kernels.values())
    small, sums = apply("MatMul", leaf(0, 8, 8), leaf(1, 8, 8)), apply("ReduceSum", leaf(0, 64, 64), axes=(1,))
    assert not any(multiplies_in(fragment, precision) for fragment in (small, sums) for precision in ("fp16", "bf16"))
    assert not multiplies_in(products()[1], "tf32") and multiplies_in(products()[1], "float32")
    for precision in ("fp16", "tf32"):
        with pytest.raises(LowerError, match=r"multiplied in|round nothing"):
            write(KernelRequest(small, precision=precision))


@needs_compiler
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_products_on_tensor_cores_compile_and_spill_nothing(precision: str, architecture: str) -> None:
    for fragment in products():
        kernel = generate(KernelRequest(fragment, precision=precision), Target("cuda", architecture))
        assert kernel.report is not None and kernel.report.spill_bytes == kernel.report.stack_bytes == 0, fragment


def fragments() -> list[Node]:
    """Return the fragments of the processor's generator tests, and those that the CUDA generator compiles in other ways."""
    found = [fragment for fragment in [*samples(list(OPS), 1), *chains()] if supports(fragment) is None]
    ways = [
        apply("Transpose", leaf(0, 2, 40, 71), perm=(0, 2, 1)),
        apply("Add", apply("Transpose", leaf(0, 33, 70), perm=(1, 0)), apply("Transpose", apply("Exp", leaf(1, 33, 70)), perm=(1, 0))),
        apply("Transpose", leaf(0, 65, 33, dtype="bool"), perm=(1, 0)),
        apply("Transpose", leaf(0, 65, 33, dtype="int64"), perm=(1, 0)),
        apply("Softmax", leaf(0, 3, 1100), axis=1),
        apply("LayerNormalization", leaf(0, 2, 17000), leaf(1, 17000), leaf(2, 17000), axis=1, epsilon=1e-5),
        apply("ReduceSum", leaf(0, 600, 70), axes=(0,)),
        apply("ReduceMax", leaf(0, 20, 45), axes=(0,)),
        apply("Softmax", leaf(0, 2, 300, 45), axis=1),
        apply("ReduceMean", leaf(0, 3, 40000), axes=(0, 1)),
        WEIGHED,
        *products(),
        apply("Sub", leaf(0, 30, 7, 41), apply("ReduceSum", leaf(0, 30, 7, 41), axes=(0, 1))),
    ]
    return list(dict.fromkeys([*found, *ways, *LONG, *LONG_EXTREMA, *WITH_NAN, *SOFTMAX, *WHOLE, MASK, IN_PLACE]))


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    return {fragment: write(KernelRequest(fragment)) for fragment in fragments()}


@pytest.fixture(scope="module")
def module(kernels: Kernels) -> HostModule:
    return compiled([*kernels.values(), write(STRIDED)])


def test_every_operator_and_chains_agree_with_the_reference_in_every_order(kernels: Kernels, module: HostModule) -> None:
    of_bytes = {"Saturate", "Quantize", "Dequantize", "DequantizeBlocks"}
    assert {fragment.op for fragment in kernels} >= {name for name, spec in OPS.items() if spec.category != "recurrence"} - of_bytes
    for fragment, kernel in kernels.items():
        check(module, kernel, fragment, feeds(fragment))


@pytest.mark.parametrize("fragment", WITH_NAN, ids=str)
def test_what_is_no_number_stays_none(fragment: Node, kernels: Kernels, module: HostModule) -> None:
    random, arrays = np.random.default_rng(5), []
    huge = 0.0 if fragment.op == "ReduceSum" else 0.05  # whether a partial sum overflows depends on the order of the terms
    for operand in feeds(fragment):
        x = random.standard_normal(operand.shape).astype(np.float32)
        for value, chance in ((np.nan, 0.02), (np.inf, 0.05), (-np.inf, 0.05), (-0.0, 0.1), (0.0, 0.1), (1e-42, 0.05), (-3e38, huge)):
            x[random.random(x.shape) < chance] = value
        arrays.append(x)
    out = np.empty(fragment.type.sizes, fragment.type.dtype)
    with np.errstate(over="ignore"):
        wanted = expected(fragment, arrays).astype(np.float32)
    for found in results(module, kernels[fragment], by_name(fragment, arrays), out):
        np.testing.assert_allclose(found.astype(np.float32), wanted, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("fragment", LONG)
def test_long_sums_do_not_round_as_often_as_they_have_terms(fragment: Node, kernels: Kernels, module: HostModule) -> None:
    x = np.full(feeds(fragment)[0].shape, 1000.3, np.float32)  # equal terms round the same way each time
    for found in results(module, kernels[fragment], {"in0": x}, np.empty(fragment.type.sizes, np.float32)):
        np.testing.assert_allclose(found, expected(fragment, [x]), rtol=3e-6)


def test_a_row_s_softmax_is_computed_once_for_all_its_places(kernels: Kernels) -> None:
    """A warp reduces the row's maximum and sum once. Each lane then weighs the values of its own places."""
    text = kernels[WEIGHED].text
    assert text.count("__shfl_xor_sync") == 2 and "place < 33" in text
    few = write(KernelRequest(apply("MatMul", apply("Softmax", leaf(0, 20, 1, 33), axis=2), leaf(1, 20, 33, 33))))
    assert few.text.count("__shfl_xor_sync") == 3, "so few rows would leave a device idle"


@pytest.mark.parametrize(
    ("rows", "terms", "block"),
    [
        (5000, 33, (8, 16)), (5000, 64, (8, 16)), (5000, 65, (16, 8)), (5000, 100, (16, 8)), (2999, 256, (32, 4)), (2999, 700, (32, 4)),
        (37, 33, (8, 16)), (37, 64, (16, 8)), (37, 100, (16, 8)), (37, 256, (64, 1)), (37, 700, (128, 1)), (1, 1000, (128, 1)),
        (128, 768, (128, 1)), (999, 384, (64, 1)), (3, 5000, (256, 1)),
    ],
)  # fmt: skip
def test_rows_are_shared_by_as_many_threads_as_load_terms_together(rows: int, terms: int, block: tuple[int, int]) -> None:
    """A lane loads eight terms at once, or four if there are few rows.

    Threads of the last block without a row of their own repeat another row.
    """
    fragment = apply("Softmax", leaf(0, rows, terms), axis=1)
    kernel = write(KernelRequest(fragment))
    assert kernel.launches[0].block[:2] == block
    check(compiled([kernel]), kernel, fragment, feeds(fragment))


def test_a_row_is_divided_by_its_root_once() -> None:
    """The division becomes a product by the reciprocal if the root is one number per row.

    A divisor that differs per element stays a division.
    """
    x = leaf(0, 9, 40)
    squares = apply("Reshape", apply("ReduceSum", apply("Mul", x, x), axes=(1,)), shape=(9, 1))
    fragment = apply("Div", x, apply("Sqrt", squares))
    kernel = write(KernelRequest(fragment))
    assert kernel.text.count("(1.0f / v_") == kernel.text.count(" / v_") == 1
    drawn = np.random.default_rng(4).standard_normal((9, 40)).astype(np.float32)
    for row, scale in enumerate((0.0, 1e-30, 1e30, 1e-20, 1e18)):
        drawn[row] *= np.float32(scale)
    drawn[5, 3], drawn[6, 4], drawn[7] = np.inf, np.nan, 2.0**-60
    with np.errstate(all="ignore"):
        wanted = drawn / np.sqrt((drawn * drawn).sum(axis=1, keepdims=True, dtype=np.float32))
    for found in results(compiled([kernel]), kernel, {"in0": drawn}, np.empty((9, 40), np.float32)):
        np.testing.assert_allclose(found, wanted, rtol=2e-6)
    each = write(KernelRequest(apply("Div", x, apply("Sqrt", leaf(1, 9, 40)))))
    assert " / v_" in each.text and "1.0f /" not in each.text


def test_strides_write_into_a_part_of_a_larger_tensor(module: HostModule) -> None:
    source = np.random.default_rng(0).standard_normal((3, 5, 6, 2)).astype(np.float32)
    for target in results(module, write(STRIDED), {"in0": source.ravel()[:-1]}, np.full((3, 5, 18), 7, np.float32)):
        np.testing.assert_array_equal(target[:, :, :6], np.maximum(source[..., 0], 0))
        assert (target[:, :, 6:] == 7).all()


def test_an_operand_may_be_overwritten_where_the_front_half_says_so(kernels: Kernels, module: HostModule) -> None:
    first, second = feeds(IN_PLACE)
    wanted = np.maximum(first, 0) + second
    (launch,) = kernels[IN_PLACE].launches
    assert "__restrict__" not in kernels[IN_PLACE].text.split("#endif")[1]
    module.launch(launch.symbol, launch.grid, launch.block, 0, [first, second, first])
    np.testing.assert_allclose(first, wanted, rtol=1e-6)


def test_what_is_not_generated_is_refused_with_a_reason() -> None:
    for fragment in (make("Opaque", (leaf(0, 5),), (), TensorType("float32", (5,))), apply("Exp", leaf(0, 5, dtype="float64"))):
        with pytest.raises(LowerError, match="no kernel can be generated"):
            write(KernelRequest(fragment))
    if has_compiler():
        with pytest.raises(LowerError, match="sm_99"):
            generate(KernelRequest(leaf(0, 5)), Target("cuda", "sm_99"))


GOLDEN: dict[str, Node] = {
    "bias_relu": apply("Relu", apply("Add", leaf(0, 1, 6, 5, 7), leaf(1, 6, 1, 1))),
    "transpose": apply("Transpose", apply("Relu", leaf(0, 1, 40, 5, 7)), perm=(0, 2, 3, 1)),
    "softmax": apply("Softmax", leaf(0, 5, 1100), axis=1),
    "product": apply("Relu", apply("MatMul", leaf(0, 70, 50), leaf(1, 50, 67))),
    "sum_in_parts": apply("Relu", apply("MatMul", leaf(0, 24, 640), leaf(1, 640, 20))),
    "column_sums": apply("ReduceSum", leaf(0, 600, 70), axes=(0,)),
    "padded_window": apply(
        "MaxPool", leaf(0, 1, 8, 9, 16), layout="NHWC", kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1), dilations=(1, 1)
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_text_is_stable(name: str, golden: Callable[[str, str], None]) -> None:
    kernel = write(KernelRequest(GOLDEN[name]))
    launches = "".join(f"// grid {launch.grid}, block {launch.block}\n" for launch in kernel.launches)
    golden(f"cuda/{name}.cu", launches + kernel.text)


def test_long_sums_of_few_results_are_cut_into_parts(kernels: Kernels, module: HostModule) -> None:
    """The first launch writes a scratch buffer of the declared size, which the next one reads.

    An element that no thread wrote would be NaN.
    """
    for fragment in in_parts():
        kernel = kernels[fragment]
        first, last = kernel.launches
        parts, rest = divmod(kernel.scratch_bytes, 4 * fragment.type.elements)
        assert parts > 1 and not rest and "scratch" in first.parameters and first.parameters[first.written] == "scratch"
        assert first.grid[0] > 60 and last.parameters[last.written] == "out"
        check(module, kernel, fragment, feeds(fragment))
    large = write(KernelRequest(apply("MatMul", leaf(0, 2048, 640), leaf(1, 640, 2048))))
    assert len(large.launches) == 1 and large.scratch_bytes == 0


def drawn_product(random: Random) -> Node:
    """Return a random product or convolution: sizes, windows, groups, layout and epilogue are drawn."""
    if random.random() < 0.4:
        rows, terms, columns = (random.randint(*sizes) for sizes in ((8, 80), (32, 400), (8, 80)))
        batch = random.choice([(), (random.randint(2, 5),)])
        fragment = apply("MatMul", leaf(0, *batch, rows, terms), leaf(1, *random.choice([batch, ()]), terms, columns))
    else:
        group, layout = random.choice([1, 1, 2]), random.choice(["NCHW", "NHWC"])
        inputs, outputs = group * random.randint(8, 40), random.randint(8, 40)
        places, taps = [random.randint(5, 11) for _ in range(2)], [random.randint(1, 4) for _ in range(2)]
        data = leaf(0, *((1, inputs, *places) if layout == "NCHW" else (1, *places, inputs)))
        window = {"strides": tuple(random.randint(1, 3) for _ in range(2)), "pads": tuple(random.randint(0, 2) for _ in range(4))}
        values: dict[str, Any] = {**window, "dilations": (1, random.randint(1, 2)), "group": group, "layout": layout}
        if random.random() < 0.6:
            fragment = apply("Conv", data, leaf(1, group * outputs, inputs // group, *taps, constant=True), **values)
        else:
            fragment = apply("ConvTranspose", data, leaf(1, inputs, outputs, *taps, constant=True), output_padding=(0, 0), **values)
    return apply("Relu", fragment) if random.random() < 0.5 else fragment


def test_drawn_products_agree_with_the_reference_in_every_order() -> None:
    random = Random(0)
    fragments_of_products: list[Node] = []
    while len(fragments_of_products) < 30:
        with suppress(TypeMismatch):  # the window may be larger than the image
            if multiplies_in(fragment := drawn_product(random), "float32"):
                fragments_of_products.append(fragment)
    kernels = {fragment: write(KernelRequest(fragment)) for fragment in fragments_of_products}
    module = compiled(list(kernels.values()))
    assert 10 < sum(len(kernel.launches) == 2 for kernel in kernels.values()) < 30, "sums are cut, and others are not"
    for fragment, kernel in kernels.items():
        check(module, kernel, fragment, feeds(fragment))


WINDOW: dict[str, Any] = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 1, "layout": "NCHW"}


@pytest.mark.parametrize(
    ("order", "fragment"),
    [
        ((2, 3, 1, 0), apply("Conv", leaf(0, 1, 64, 9, 9), leaf(1, 40, 64, 3, 3, constant=True), **WINDOW)),
        ((1, 0), apply("MatMul", leaf(1, 70, 90, constant=True), leaf(0, 90, 40))),
    ],
)
def test_constants_of_products_lie_as_tiles_read_them(order: tuple[int, ...], fragment: Node) -> None:
    """Neighbouring rows (or columns) of a tile are adjacent in memory. The positions of a window are the outermost axes."""
    assert constant_orders(fragment) == {1: order}
    weights = next(each for each in placeholders(fragment) if each.integer("index") == 1).type.sizes
    strides, step = [0] * len(order), 1
    for axis in reversed(order):
        strides[axis], step = step, step * weights[axis]
    request = KernelRequest(fragment, input_strides=(None, tuple(strides)))
    kernel, arrays = write(request), feeds(fragment)
    operands = by_name(fragment, arrays)
    operands["in1"] = np.ascontiguousarray(operands["in1"].transpose(order))
    found = results(compiled([kernel]), kernel, operands, np.zeros(fragment.type.sizes, np.float32))
    np.testing.assert_allclose(found[0], expected(fragment, arrays), rtol=1e-4, atol=1e-4)
    assert len({each.tobytes() for each in found}) == 1


DIGEST = """
import hashlib
from egraph.tensor.ops.reference import evaluate
from lower.cost.rounding import ROUNDED_OPERATORS, usual_error
from lower.eoperator.request import KernelRequest
from lower.targets.cuda.generator import write
from tests.lower.test_cuda_generator import fragments
kernels = [write(KernelRequest(fragment)) for fragment in fragments()]
print(hashlib.sha256("".join(f"{kernel.text}{kernel.launches}" for kernel in kernels).encode()).hexdigest())
"""


def test_the_same_request_gives_the_same_text_in_every_process(kernels: Kernels) -> None:
    """Hash seeds differ between processes, and so does the order of sets; the text must depend on neither."""
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    done = subprocess.run([sys.executable, "-c", DIGEST], env=environment, capture_output=True, text=True, check=True)
    texts = "".join(f"{kernel.text}{kernel.launches}" for kernel in kernels.values())
    assert done.stdout.strip() == hashlib.sha256(texts.encode()).hexdigest()


def test_launches_survive_their_file(kernels: Kernels, tmp_path: Path) -> None:
    for kernel in kernels.values():
        path = tmp_path / "kernels.json"
        kernel_file.write(path, {"kernel": kernel_file.Kernel(kernel.text, kernel.launches)})
        assert kernel_file.read(path)["kernel"].launches == kernel.launches


@needs_compiler
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_nothing_spills(architecture: str, kernels: Kernels) -> None:
    launches = [launch for kernel in kernels.values() for launch in kernel.launches]
    compiled_code = compile_text("\n".join(kernel.text for kernel in kernels.values()), launches, architecture)
    assert compiled_code is not None
    code, report = compiled_code  # the maximum of each figure over many kernels
    assert code.startswith(b"\x7fELF") and report.architecture == architecture
    assert report.spill_bytes == 0 and 0 < report.registers <= 255


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32"])
def test_whole_numbers_are_multiplied_as_the_floats_that_they_are_cast_to(dtype: str) -> None:
    """Quantised networks contain this step: after a cast to float32, the arithmetic must not continue in integers."""
    numbers = placeholder(0, TensorType(dtype, (5, 7)))
    fragment = apply("Mul", apply("Cast", numbers, to="float32"), leaf(1, 1, 7))
    kernel = write(KernelRequest(fragment))
    operands = [np.arange(35).reshape(5, 7).astype(dtype), np.linspace(-0.9, 0.9, 7, dtype=np.float32).reshape(1, 7)]
    check(compiled([kernel]), kernel, fragment, operands)


@needs_compiler
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_kernels_that_are_compiled_together_are_reported_as_alone(architecture: str, kernels: Kernels) -> None:
    some = list(kernels.values())[9 * ARCHITECTURES.index(architecture) :: 9 * len(ARCHITECTURES)]
    together = reports_together([kernel.text for kernel in some], [kernel.launches for kernel in some], architecture)
    alone = [compile_text(kernel.text, kernel.launches, architecture) for kernel in some]
    assert together == [each[1] for each in alone if each is not None] and len({report.registers for report in together}) > 3


def test_what_the_compiler_spills_left_to_itself_is_compiled_with_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Among the texts that spill least, the one with the highest occupancy is chosen.

    The compiler is faked: spills depend on the ptxas version.
    """
    spilled_bytes = {"256": 8, "256, 8": 4, "256, 4": 0, "256, 2": 0}
    tried: list[str] = []

    def compile_as_told(text: str, launches: Sequence[Launch], architecture: str) -> tuple[bytes, Report] | None:
        bounds = text.partition("__launch_bounds__(")[2].partition(")")[0]
        tried.append(bounds)
        blocks = int(bounds.partition(", ")[2] or 3)
        return bounds.encode(), Report(architecture, 32, spilled_bytes[bounds], 0, 0, blocks / 8)

    monkeypatch.setattr(sys.modules[compile_unspilled.__module__], "compile_text", compile_as_told)
    compiled = compile_unspilled('extern "C" __global__ void __launch_bounds__(256) f() {}', (), "sm_90")
    assert compiled is not None and compiled[0] == b"256, 4" and tried[0] == "256" and set(tried) == set(spilled_bytes)
    tried.clear()
    spilled_bytes["256"] = 0
    compiled = compile_unspilled('extern "C" __global__ void __launch_bounds__(256) f() {}', (), "sm_90")
    assert compiled is not None and compiled[0] == b"256" and tried == ["256"]


@needs_compiler
def test_products_that_spill_leave_room_for_fewer_blocks() -> None:
    """Launch bounds that allow several blocks on a multiprocessor leave some kernels too few registers; these get room for fewer blocks."""
    fragment = apply("Relu", apply("MatMul", leaf(0, 5, 79, 400), leaf(1, 400, 82)))
    kernel = write(KernelRequest(apply("Transpose", fragment, perm=(0, 2, 1))))
    alone = compile_text(kernel.text, kernel.launches, "sm_80")
    assert alone is not None and alone[1].spill_bytes > 0, "another compiler may not spill: find another kernel"
    compiled = compile_unspilled(kernel.text, kernel.launches, "sm_80")
    assert compiled is not None and compiled[1].spill_bytes == 0 and compiled[1].registers > alone[1].registers


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_a_toolkit_compiles_where_nvrtc_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "_nvrtc", lambda: None)
    kernel = generate(KernelRequest(GOLDEN["softmax"]), Target("cuda", "sm_80"))
    assert kernel.cubin is not None and kernel.cubin.startswith(b"\x7fELF")
    assert kernel.report is not None and kernel.report.registers > 0 and kernel.report.spill_bytes == 0


def test_without_a_compiler_there_is_text_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "_nvrtc", lambda: None)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    request = KernelRequest(GOLDEN["softmax"])
    assert not has_compiler() and generate(request, Target("cuda", "sm_90")) == write(request)


@needs_compiler
def test_the_report_tells_shared_memory() -> None:
    kernel = generate(KernelRequest(GOLDEN["transpose"]), Target("cuda", "sm_90"))
    assert kernel.cubin is not None and kernel.report is not None
    assert kernel.report.shared_bytes == 32 * 33 * 4 and kernel.report.occupancy == 1.0


def test_occupancy_is_bounded_by_what_runs_out_first() -> None:
    processor = MULTIPROCESSORS["sm_90"]
    assert occupancy(processor, 256, 32, 0) == 1.0
    assert occupancy(processor, 256, 64, 0) == 0.5  # limited by registers: 1024 threads of 64
    assert occupancy(processor, 64, 16, 48 * 1024) == 4 * 64 / 2048  # limited by shared memory: four blocks of 49 KB
    assert occupancy(processor, 32, 16, 0) == 0.5  # limited to 32 blocks
