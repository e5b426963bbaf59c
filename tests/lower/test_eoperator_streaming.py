"""Test kernels whose results exceed the caches: whole lines are stored past the caches, reads are prefetched, any address works."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import lower.targets.cpu.generator.streaming as streaming
from egraph.tensor import Node, attributes, placeholders
from egraph.tensor.expr.index import Iterator, index
from egraph.tensor.ops import apply
from egraph.tensor.ops.reference import evaluate
from lower.eoperator.request import KernelRequest
from lower.targets.cpu.generator.library import _link
from tests.support.fragments import leaf
from tests.support.kernels import Loaded, feeds

GUARD = 64
LINE_BYTES = 64
BLOCKS = apply("Reshape", leaf(0, 1, 6, 10, 64), shape=(6, 10, 2, 2, 16))
WINDOW = attributes(
    kernel_shape=(3, 3), strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1), count_include_pad=1, layout="NHWC"
)  # fmt: skip
FRAGMENTS = (
    apply("AveragePool", leaf(0, 1, 7, 6, 32), attributes=WINDOW),
    apply("Relu", leaf(0, 4099)),
    apply("Add", leaf(0, 37, 64), leaf(1, 64)),
    apply("Transpose", leaf(0, 300, 64), perm=(1, 0)),
    apply("Transpose", leaf(0, 48, 272), perm=(1, 0)),
    apply("Transpose", apply("Relu", leaf(0, 2, 531, 61)), perm=(0, 2, 1)),
    apply("Add", apply("Transpose", leaf(0, 33, 90), perm=(1, 0)), leaf(1, 90, 33)),
    apply("Transpose", leaf(0, 5, 64, 3), perm=(0, 2, 1)),
    apply("Transpose", BLOCKS, perm=(0, 2, 1, 3, 4)),
    apply("Pad", leaf(0, 9, 64), before=(1, 0), after=(1, 0), mode="constant", value=0.5),
    apply("Concat", leaf(0, 7, 32), leaf(1, 7, 16), axis=1),
    apply("Softmax", leaf(0, 19, 160), axis=1),
    apply("LayerNormalization", leaf(0, 19, 160), leaf(1, 160), leaf(2, 160), axis=1, epsilon=1e-5),
    apply("ReduceMean", leaf(0, 2, 5, 7, 64), axes=(1, 2)),
)


def compiled(folder: Path, threads: int) -> Path:
    """Compile all fragments in this process, in which the tests lower the size of a large tensor."""
    from lower.targets.cpu.generator.generate import compile_object, generate

    objects = []
    for number, fragment in enumerate(FRAGMENTS):
        objects.append(folder / f"{number}.o")
        compile_object(generate(KernelRequest(fragment), threads=threads), objects[-1])
    _link(objects, folder / "kernels.so")
    return folder / "kernels.so"


def check(loaded: Loaded, fragment: Node, shift_bytes: int) -> None:
    """Compare with the reference for an output that starts ``shift_bytes`` after the start of a line."""
    inputs = feeds(fragment)
    count = fragment.type.elements
    memory = np.full(count + 2 * GUARD, 7, np.float32)
    start = GUARD // 2 + ((shift_bytes - memory.ctypes.data) % LINE_BYTES) // 4
    output = memory[start : start + count].reshape(fragment.type.sizes)
    loaded.run(KernelRequest(fragment).symbol, [*inputs, output])
    expected = evaluate((fragment,), dict(zip(placeholders(fragment), inputs, strict=True)))[0]
    assert output.ctypes.data % LINE_BYTES == shift_bytes
    assert (memory[:start] == 7).all() and (memory[start + count :] == 7).all()
    np.testing.assert_allclose(output, expected, rtol=2e-5, atol=2e-6, err_msg=str(fragment))


@pytest.mark.parametrize("threads", [1, 2])
def test_large_kernels_agree_with_the_reference_at_any_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    import lower.targets.cpu.generator.nest as nest

    monkeypatch.setattr(streaming, "STREAMED_BYTES", 0)
    monkeypatch.setattr(nest, "SERIAL_NS", 0.0)
    loaded = Loaded(compiled(tmp_path, threads), 3)
    for fragment in FRAGMENTS:
        for shift_bytes in (0, 4, 32):
            check(loaded, fragment, shift_bytes)
    assert bool(loaded.launches) == (threads > 1)


def test_windows_fetch_one_stream_and_again_what_follows_far_behind() -> None:
    """The taps of a window are nine slices of a row of 4608 elements. A row of the image is 210 rows of the matrix."""
    k, i = index(Iterator("k", 0, 128)), index(Iterator("i", 0, 40_000))
    place = i * 4608 + k
    taps = [place + (r * 210 + s) * 4608 + (r * 3 + s) * 128 for r in (0, 1, 2) for s in (0, 1, 2)]
    found = streaming.prefetched(taps, Iterator("k", 0, 128))
    foremost = 2 * 210 + 2 + streaming.STEPS_AHEAD
    lines = {place + foremost * 4608 + tap * 128 for tap in range(9)}
    again = {place + (r * 210 + s + streaming.STEPS_AHEAD) * 4608 + (r * 3 + s) * 128 for r in (0, 1) for s in (0, 1, 2)}
    assert set(found) == lines | again and len(found) == len(lines | again)
    window = [place + (r * 300 + s) * 4608 for r in (0, 1, 2) for s in (0, 1, 2)]  # one position per row, read on only in its own column
    assert place + (600 + 2 + streaming.STEPS_AHEAD) * 4608 in streaming.prefetched(window, Iterator("k", 0, 128))
    assert streaming.prefetched([k, k + 4], Iterator("k", 0, 128)) == []  # the only loop is that over vectors


def test_places_too_far_apart_for_any_cache_are_streams_of_their_own() -> None:
    k, i = index(Iterator("k", 0, 64)), index(Iterator("i", 0, 40_000))
    near, far = i * 64 + k, i * 64 + k + streaming.FAR_BYTES
    assert streaming.prefetched([near, far], Iterator("k", 0, 64)) == [far + streaming.STEPS_AHEAD * 64, near + streaming.STEPS_AHEAD * 64]


def test_rows_of_large_tensors_are_fetched_while_those_before_are_reduced(monkeypatch: pytest.MonkeyPatch) -> None:
    from lower.targets.cpu.generator.generate import generate

    fragment = apply("Softmax", leaf(0, 20, 160), axis=1)
    assert "einsat_fetch" not in generate(KernelRequest(fragment), threads=1).script()
    monkeypatch.setattr(streaming, "STREAMED_BYTES", 0)
    code = generate(KernelRequest(fragment), threads=1).script()
    assert code.count("einsat_fetch") == 8  # a line of each of four rows, and of the buffer of their powers
    assert "+ 640" in next(line for line in code.splitlines() if "einsat_fetch" in line)


def test_small_kernels_do_not_call_what_large_ones_need() -> None:
    from lower.targets.cpu.generator.generate import generate

    fragment = apply("Transpose", leaf(0, 300, 64), perm=(1, 0))
    assert "einsat_" not in generate(KernelRequest(fragment), threads=1).script()


def test_large_kernels_stream_whole_lines_and_wait_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    from lower.targets.cpu.generator.generate import generate

    monkeypatch.setattr(streaming, "STREAMED_BYTES", 0)
    if not streaming.streams(0):
        pytest.skip("no streaming stores on this kind of machine")
    code = generate(KernelRequest(apply("Transpose", leaf(0, 300, 64), perm=(1, 0))), threads=1).script()
    assert code.count("einsat_stream") >= 16 and code.count("einsat_fetch") >= 16
    assert "einsat_finish" in code[code.rindex("einsat_stream") :]
    window = generate(KernelRequest(FRAGMENTS[0]), threads=1).script()
    assert "einsat_fetch" in window
    kept = generate(KernelRequest(apply("Softmax", leaf(0, 19, 160), axis=1)), threads=1).script()
    assert "einsat_stream" not in kept  # its row is read again while it is still in the caches
