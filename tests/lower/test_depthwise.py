"""Test depthwise convolutions: sums over windows, their epilogues, and the layouts that they read and write."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from egraph.onnx.exporter import serialized
from egraph.tensor import Node, TensorType, placeholder
from egraph.tensor.ops import apply
from lower.calls.call import LibraryCall
from lower.compile import CompileOptions, compile_program
from lower.targets.cpu import depthwise
from lower.targets.cpu.depthwise.match import CONV, match
from lower.views import Window
from runtime import Session
from runtime.artefact import Artefact
from runtime.devices.cpu.native.build import build
from runtime.executable import Executable
from tests.support.lowering import Model, check, choose, float32

SLOW = settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
ENDS = ("nothing", "bias", "bias and function", "residual", "number a position")


def ended(model: Model, y: Node, end: str) -> Node:
    """Return the epilogue ``end`` applied to the sums ``y``."""
    sizes = y.type.sizes
    if "bias" in end:
        y = apply("Add", y, model.weight(sizes[-1]))
    if end == "residual":
        y = apply("Sub", y, model.input(*sizes))
    if end == "number a position":
        y = apply("Mul", y, model.input(*sizes[:-1], 1))
    return apply("Mul", y, apply("Sigmoid", y)) if "function" in end else y


def compare(model: Model, y: Node, folder: Path, threads: int = 1) -> None:
    """Check that one call computes ``y``, and compare it with the reference."""
    program = choose(model.graph(y), CONV)
    assert [kernel.implementation.text for kernel in program.kernels if not kernel.implementation.is_free] == [CONV]
    check(model.graph(y), program, folder, threads)


def convolution(model: Model, x: Node, taps: tuple[int, ...], **attributes: Any) -> Node:
    """Return a depthwise convolution; by default, its attributes are those of an unpadded one."""
    usual: dict[str, Any] = {"strides": (1,) * len(taps), "pads": (0,) * (2 * len(taps)), "dilations": (1,) * len(taps)}
    channels = x.type.sizes[-1]
    return apply("Conv", x, model.weight(channels, 1, *taps), group=channels, layout="NHWC", **{**usual, **attributes})


@SLOW
@given(
    images=st.sampled_from([1, 2]), channels=st.sampled_from([5, 16, 20, 48]),
    axes=st.lists(
        st.tuples(  # size, taps, stride, padding on either side, dilation
            st.sampled_from([7, 12, 31]), st.sampled_from([1, 2, 3, 5]), st.sampled_from([1, 2, 3]), st.sampled_from([0, 1, 4]),
            st.sampled_from([0, 1, 3]), st.sampled_from([1, 2]),
        ), min_size=1, max_size=2,
    ),
    end=st.sampled_from(ENDS), threads=st.sampled_from([1, 2]),
)  # fmt: skip
@example(images=1, channels=32, axes=[(40, 3, 1, 1, 1, 1), (40, 3, 1, 1, 1, 1)], end="bias and function", threads=2)
@example(images=2, channels=32, axes=[(40, 3, 2, 0, 1, 1), (41, 3, 2, 0, 1, 1)], end="bias", threads=2)
@example(images=1, channels=16, axes=[(60, 31, 1, 15, 15, 1)], end="nothing", threads=2)
@example(images=1, channels=20, axes=[(2, 1, 1, 0, 0, 1), (2, 1, 9999, 9000, 0, 1)], end="bias", threads=1)
@example(images=1, channels=16, axes=[(9, 1, 1, 4, 4, 1), (30, 2, 1, 4, 4, 1)], end="residual", threads=1)
def test_convolutions_agree_with_the_reference(
    tmp_path: Path, images: int, channels: int, axes: list[tuple[int, int, int, int, int, int]], end: str, threads: int
) -> None:
    """Test one and two axes of positions, including results that read only padding."""
    sizes, taps, strides, before, after, dilations = zip(*axes, strict=True)
    model = Model()
    y = convolution(
        model, model.input(images, *sizes, channels), taps, strides=strides, pads=before + after,
        dilations=tuple(d if 1 + d * (t - 1) <= n else 1 for n, t, d in zip(sizes, taps, dilations, strict=True)),
    )  # fmt: skip
    compare(model, ended(model, y, end), tmp_path, threads)


@pytest.mark.parametrize("flags", [("-U__x86_64__",), ()], ids=["without vectors", "this processor"])
@pytest.mark.parametrize("side", [14, 9])
def test_processors_without_vectors_compute_the_same(tmp_path: Path, flags: tuple[str, ...], side: int) -> None:
    model = Model()
    y = ended(model, convolution(model, model.input(1, side, side, 48), (3, 3), pads=(1, 1, 1, 1)), "bias and function")
    graph = model.graph(y)
    plan = compile_program(choose(graph, CONV), tmp_path, CompileOptions(threads=1, export_graph=serialized))
    library = build(Path(depthwise.__file__).with_name("depthwise.c"), flags)
    executable = Executable(plan, Artefact.open(tmp_path).weights, threads=1, libraries=lambda file: library)
    x = np.random.default_rng(0).standard_normal((1, side, side, 48)).astype(np.float32)
    result = executable.run({plan.inputs[0].name: x})[plan.outputs[0].name]
    executable.close()
    with Session(tmp_path, threads=1) as session:
        (usual,) = session.run(None, {"x0": x})
    np.testing.assert_allclose(result, usual, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="masked stores are x86's")
def test_steps_store_vectors_as_a_whole() -> None:
    """Of relu in place, compilers store only the lanes that become zero: about twenty cycles on AMD processors before Zen 4."""
    text = build(Path(depthwise.__file__).with_name("depthwise.c"), ("-S",)).read_text()
    assert "vfmadd" in text and "vmaskmov" not in text


def test_rows_are_read_and_written_where_they_lie(tmp_path: Path) -> None:
    """Columns come before rows in the input and the result, so positions have no common stride. Many taps are computed in another way."""
    for taps, end in ((3, "bias and function"), (5, "bias"), (5, "bias and function")):
        model = Model()
        turned = apply("Transpose", model.input(1, 20, 18, 32), perm=(0, 2, 1, 3))
        y = ended(model, convolution(model, turned, (taps, taps), pads=(taps // 2,) * 4), end)
        compare(model, apply("Transpose", y, perm=(0, 2, 1, 3)), tmp_path / f"{taps} {end}", 2)


def fragment(
    *, channels: int = 20, rank: int = 4, group: int | None = None, layout: str = "NHWC", constant: bool = True, taps: int = 3
) -> Node:
    sizes = (1, *(taps + 6,) * (rank - 2), channels) if layout == "NHWC" else (1, channels, *(taps + 6,) * (rank - 2))
    group, axes = channels if group is None else group, rank - 2
    weights = placeholder(1, float32(channels, channels // group, *(taps,) * axes), constant=constant)
    return apply(
        "Conv", placeholder(0, float32(*sizes)), weights, strides=(1,) * axes, pads=(0,) * (2 * axes), dilations=(1,) * axes, group=group,
        layout=layout,
    )  # fmt: skip


def test_results_are_written_with_gaps_between_positions_and_not_between_channels() -> None:
    call = match(fragment(), CONV, destination=Window(5, (1, 7, 7, 20), (9999, 700, 61, 1)))
    assert isinstance(call, LibraryCall) and call.destination.strides == (9999, 700, 61, 1)
    assert "side by side" in str(match(fragment(), CONV, destination=Window(0, (1, 7, 7, 20), (980, 7, 1, 49))))


@pytest.mark.parametrize(
    ("one", "reason"),
    [
        (fragment(constant=False), "no constant"),
        (fragment(layout="NCHW"), "channels first"),
        (fragment(rank=5), "3 axes"),
        (fragment(group=10), "more than one channel"),
        (fragment(taps=1025), "too many"),
        (apply("Erf", fragment()), "not an epilogue"),
        (apply("Exp", fragment()), "not computed after products"),
        (placeholder(0, TensorType("float64", (1, 2))), "float64"),
    ],
    ids=("variable", "layout", "rank", "groups", "taps", "function", "step", "type"),
)
def test_what_the_kernel_does_not_compute_is_refused(one: Node, reason: str) -> None:
    said = match(one, CONV)
    assert isinstance(said, str) and reason in said, said
    assert "alone" in str(match(fragment(), f"{CONV}@bf16"))
