"""Test windows: rows that share their reads are computed together, and streamed by whole lines."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import lower.targets.cpu.generator.generate as generate_module
import lower.targets.cpu.generator.nest as nest_module
import lower.targets.cpu.generator.streaming as streaming_module
from egraph.errors import LowerError
from egraph.tensor import Node
from egraph.tensor.ops import apply
from lower.eoperator.request import KernelRequest
from lower.targets.cpu.generator.generate import compile_object, compiled, generate, target_of
from lower.targets.cpu.generator.library import _link
from tests.support.fragments import leaf
from tests.support.kernels import Loaded, check, transposed


def pool(name: str, data: Node | tuple[int, ...], kernel: tuple[int, int], **changes: Any) -> Node:
    values: dict[str, Any] = {"strides": (1, 1), "dilations": (1, 1), "pads": (1, 1, 1, 1), "layout": "NCHW"}
    values |= {"count_include_pad": 1} if name == "AveragePool" else {}
    operand = leaf(0, *data) if isinstance(data, tuple) else data
    return apply(name, operand, kernel_shape=kernel, **(values | changes))


def windows() -> list[Node]:
    x = leaf(0, 2, 3, 11, 37)
    weights = leaf(1, 3, 1, 3, 3)
    depthwise: dict[str, Any] = {"strides": (1, 1), "dilations": (1, 1), "pads": (1, 1, 1, 1), "group": 3, "layout": "NCHW"}
    return [
        pool("AveragePool", (2, 3, 11, 37), (3, 3)), pool("AveragePool", (1, 2, 4, 64), (3, 3)), pool("MaxPool", (1, 2, 7, 50), (3, 3)),
        pool("AveragePool", (1, 2, 9, 40), (3, 3), pads=(0, 0, 0, 0)), pool("AveragePool", (1, 2, 9, 40), (3, 3), count_include_pad=0),
        pool("AveragePool", (1, 2, 17, 40), (2, 2), pads=(0, 0, 0, 0)), pool("AveragePool", (1, 2, 17, 40), (5, 5), pads=(2, 2, 2, 2)),
        pool("AveragePool", (1, 2, 17, 40), (3, 3), strides=(2, 2)), pool("MaxPool", (1, 2, 17, 40), (3, 3), strides=(2, 1)),
        pool("AveragePool", (1, 2, 17, 40), (3, 1), pads=(1, 0, 1, 0)), pool("AveragePool", (1, 2, 3, 40), (3, 3)),
        pool("MaxPool", (1, 2, 17, 40), (3, 3), dilations=(2, 2), pads=(2, 2, 2, 2)),
        pool("AveragePool", (1, 9, 13, 24), (3, 3), layout="NHWC"),
        pool("MaxPool", (1, 5, 6, 16), (3, 3), layout="NHWC", pads=(0, 0, 0, 0)),
        pool("MaxPool", leaf(0, 1, 2, 17, 40, dtype="uint8"), (3, 3)),  # LLVM took exponential time for the largest of nine bytes
        pool("MaxPool", leaf(0, 1, 2, 17, 40, dtype="int8"), (3, 3), strides=(2, 2)),
        pool("MaxPool", leaf(0, 1, 7, 9, 24, dtype="uint8"), (3, 3), strides=(2, 2), layout="NHWC"),
        apply("Conv", x, weights, **depthwise),
        apply("Relu", apply("Sub", apply("Exp", pool("AveragePool", (2, 3, 11, 37), (3, 3))), x)),
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["one thread", "divided", "streamed"])
def test_windows_agree_with_the_reference(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "divided":
        monkeypatch.setattr(nest_module, "SERIAL_NS", 0.0)
    if kind == "streamed":
        monkeypatch.setattr(streaming_module, "STREAMED_BYTES", 0)
    requests = [KernelRequest(fragment) for fragment in windows()]
    objects: list[Path] = []
    for request in requests:
        objects.append(tmp_path / f"{len(objects)}.o")
        compile_object(generate(request, threads=2 if kind == "divided" else 1), objects[-1])
    _link(objects, tmp_path / "kernels.so")
    for tasks in (1, 2, 3) if kind == "divided" else (1,):
        loaded = Loaded(tmp_path / "kernels.so", tasks)
        for request in requests:
            check(loaded, request.symbol, request.fragment)


def test_reductions_of_what_is_transposed_run_along_memory() -> None:
    """So do results written beside them in tiles. If each element was read alone, these kernels took twenty times as long."""
    for fragment in transposed():
        script = generate(KernelRequest(fragment), threads=1).script()
        assert not re.search(r"for i\w+(, i\w+)* in .*\n( +t\d+: T.float32 = in0.*\n)+", script), fragment
        assert re.search(r"T.float32x\d+ = in0\[", script)
        assert "T.Div" not in script, "statistics of a group are computed once"


@pytest.mark.parametrize("threads", [1, 2])
def test_reductions_are_computed_before_the_tiles_that_read_them(threads: int) -> None:
    """Mean and variance of a transposed image are computed in loops of their own, outside all other loops."""
    lines = generate(KernelRequest(transposed()[2]), threads=threads).script().splitlines()
    enclosing: list[tuple[int, bool]] = []
    for line in lines:
        indent = len(line) - len(line.lstrip())
        while enclosing and enclosing[-1][0] >= indent:
            enclosing.pop()
        if line.lstrip().startswith("for "):
            is_reduction = line.lstrip().startswith("for k")
            assert not is_reduction or all(each for _, each in enclosing), line
            enclosing.append((indent, is_reduction))
    assert sum(line.startswith("    for k") for line in lines) >= 2


def test_a_reduction_that_would_be_computed_for_every_element_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """If groups begin within a row, their statistics would be computed again for each element."""
    monkeypatch.setattr(generate_module, "QUICK_TERMS", 1)
    monkeypatch.setattr(generate_module, "REPEATED", 1)
    for groups, size in ((30, 12), (20, 18)):
        grouped = apply("Reshape", leaf(0, 40, 9), shape=(1, groups, size))
        norm = apply("InstanceNormalization", grouped, leaf(1, groups), leaf(2, groups), epsilon=1e-5)
        request = KernelRequest(apply("Reshape", norm, shape=(40, 9)))
        if size % 9:
            with pytest.raises(LowerError, match="the same sums again"):
                generate(request, threads=1)
        else:
            generate(request, threads=1)


def loads(operands: int, kernel: tuple[int, int], strides: tuple[int, int] = (1, 1)) -> float:
    """Return the vectors of an operand loaded per stored vector, in a kernel without borders.

    The window is over the sum of the operands.
    """
    shape = (1, 2, 15 * strides[0] + kernel[0], 64 + kernel[1] - 1)
    data = [leaf(k, *shape) for k in range(operands)]
    fragment = pool("AveragePool", data[0] if operands == 1 else apply("Add", *data), kernel, strides=strides, pads=(0, 0, 0, 0))
    script = generate(KernelRequest(fragment), threads=1).script()
    return len(re.findall(r"float32x16 = in0\[", script)) / len(re.findall(r"\bout\[.*:.*\] =", script))


def test_rows_of_a_window_load_what_they_share_once() -> None:
    assert loads(1, (3, 3)) == 4.5  # six rows of three for four rows of results
    assert loads(1, (3, 3), strides=(2, 1)) == 9.0  # too little is shared between rows
    assert loads(2, (3, 3)) == 9.0  # more than the registers hold


def test_rows_that_are_streamed_begin_at_a_line() -> None:
    script = generate(KernelRequest(pool("AveragePool", (1, 64, 448, 448), (3, 3))), threads=1).script()
    places = re.findall(r"einsat_stream\", T.address_of\(out\[(.*?)\]\)", script)
    assert places and {eval(re.sub(r"i\d+", "0", place)) % 16 for place in places} == {0}


def test_no_line_is_fetched_for_two_rows_of_a_group() -> None:
    script = generate(KernelRequest(pool("AveragePool", (1, 64, 448, 448), (3, 3))), threads=1).script()
    fetched = re.findall(r"einsat_fetch\", T.address_of\(in0\[0\]\), (.*)\)", script)
    assert fetched and len(set(fetched)) == len(fetched)


def test_threads_are_not_woken_for_what_is_left_of_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nest_module, "SERIAL_NS", 0.0)
    script = generate(KernelRequest(apply("Relu", leaf(0, 2048 + 2))), threads=2).script()
    assert script.count("T.parallel(") == 1


@pytest.mark.parametrize("processor", ["znver2", "znver3", "znver5"])
def test_bytes_are_not_moved_by_instructions_that_are_slow_beside_avx(processor: str) -> None:
    """Regression: LLVM assembled the bytes at the borders of windows with SSE4a; windows with channels first were five times as slow."""
    bytes_read = apply("Dequantize", leaf(0, 1, 8, 12, 56, dtype="uint8"), leaf(1), leaf(2, dtype="uint8"))
    values: dict[str, Any] = {"strides": (1, 1), "dilations": (1, 1), "pads": (1, 1, 1, 1), "group": 8, "layout": "NCHW"}
    sums = apply("Conv", bytes_read, leaf(3, 8, 1, 3, 3), **values)
    request = KernelRequest(apply("Quantize", sums, leaf(4), leaf(5, dtype="uint8")))
    code = compiled(generate(request, threads=1), target_of(processor)).inspect_source("asm")
    assert "vpunpcklbw" in code
    assert not re.search(r"\b(insertq|extrq)\b", code)
