"""The table of generated CUDA kernels lists strides, errors and omissions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import cuda_judge, cuda_kernels
from bench.cuda_judge import (
    BARRIER,
    FEW_BLOCKS,
    Row,
    Trial,
    calls_of,
    digest_of,
    judge,
    largest,
    random_operands,
    with_small_scores,
    without_barriers,
)
from bench.cuda_kernels import main, on_record, page, reason
from bench.models import BenchModel
from bench.record import origin
from egraph.tensor.ops import apply
from lower.compile import CompileOptions, plan_program
from lower.eoperator.request import KernelRequest
from lower.targets import lowering
from lower.targets.cuda.generator import GeneratedKernel, write
from lower.targets.cuda.generator.attention import AttentionRequest
from runtime.devices.cuda.shim import HostModule, compile_for_host
from tests.lower.test_attention import attended, cut, heads
from tests.lower.test_cuda_generator import needs_compiler
from tests.support.fragments import leaf
from tests.support.lowering import Model, choose

STRIDED = KernelRequest(apply("Relu", leaf(0, 3, 5, 6)), output_strides=(90, 18, 1), input_strides=((60, 12, 2),))
SOFTMAX = KernelRequest(apply("Softmax", leaf(0, 5, 1100), axis=1))


def test_right_kernels_are_good_with_their_strides() -> None:
    rows = [row for _, row in judge([STRIDED, SOFTMAX], "model")]
    assert [row.symbol for row in rows] == [STRIDED.symbol, SOFTMAX.symbol]
    assert all(row.is_good and row.orders_agree and row.error is not None and row.error < 1 for row in rows)


def test_wrong_kernels_are_exceptions_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(request: KernelRequest) -> GeneratedKernel:
        kernel = write(request)
        text = kernel.text.replace("__syncthreads();", "", 1).replace("einsat_max(v_1, 0.0f)", "v_1")
        return replace(kernel, text=text)

    monkeypatch.setattr(cuda_judge, "write", wrong)
    rows = [row for _, row in judge([STRIDED, SOFTMAX], "model")]
    assert not any(row.is_good for row in rows)
    where = origin(1, ("bench",), unseen=True, complete=True, left_out={"other": "its package is not installed"})
    text = page(rows, where)
    assert all(f"`{row.symbol}` (model): {reason(row)}" in text and reason(row) for row in rows)
    assert "other is left out: its package is not installed." in text


def test_ending_early_keeps_what_was_judged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def gather(models: Sequence[BenchModel], batches: Sequence[int]) -> Iterator[tuple[str, list[KernelRequest] | str]]:
        yield "first", [STRIDED]
        yield "second", [STRIDED]
        raise KeyboardInterrupt

    monkeypatch.setattr(cuda_kernels, "gather", gather)
    monkeypatch.setattr(cuda_kernels, "RESULTS", tmp_path)
    assert main(["--record"]) == 0
    recorded = (tmp_path / "cuda_kernels.md").read_text()
    assert "| second | 1 | 1 | 1 |" in recorded and "ended early" in recorded
    assert "second" in capsys.readouterr().out


def test_attention_is_judged_with_its_operands_where_they_lie() -> None:
    """Attention heads are read in place from one product's result, and written side by side."""
    m = Model()
    wide = m.input(1, 37, 3 * 40)
    q, k, v = (heads(cut(wide, 2, part * 40, (part + 1) * 40), 2) for part in range(3))
    y = apply("Transpose", attended(m, q, k, v, "bias", "queries", guarded=False), perm=(0, 2, 1, 3))
    target = lowering("cuda:h100").target
    program = choose(m.graph(apply("Reshape", y, shape=(1, 37, 40))), "attention", target=target)
    _, writer = plan_program(program, CompileOptions(target=target))
    ((request, row),) = judge(list(writer.requests.values()), "model")
    assert isinstance(request, AttentionRequest) and row.is_good and row.barriers == 2
    call, _ = calls_of(request)
    assert call.arguments[0].window.strides[-2] == 3 * 40 and call.destination.strides[-2] == 40


def test_scores_of_attention_are_of_a_size_that_exponentials_bear() -> None:
    """A divisor drawn near 0 makes scores large, so operands are scaled down, unless the scores do not shrink with them."""
    q, k, divisor = leaf(0, 8, 16), leaf(1, 16, 8), leaf(2)
    values = {q: np.full((8, 16), 4.0), k: np.full((16, 8), 4.0), divisor: np.array(0.25)}
    scores = apply("Div", apply("MatMul", q, k), divisor)
    small = with_small_scores(apply("Softmax", scores, axis=1), values)
    assert largest([scores], values) == 1024 and largest([scores], small) == 16 and small[divisor] == 0.25 / 64
    moved = apply("Add", scores, apply("Exp", apply("Sub", divisor, divisor)))
    assert largest([moved], with_small_scores(apply("Softmax", moved, axis=1), values)) <= 16
    huge = apply("Softmax", apply("Div", scores, apply("Mul", divisor, divisor)), axis=1)
    assert with_small_scores(huge, values) == values


def test_a_barrier_that_nothing_needs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The barriers of a block's softmax are needed; one more behind the last of them is not."""

    def barred(request: KernelRequest) -> GeneratedKernel:
        kernel = write(request)
        last = kernel.text.rindex(BARRIER)
        return replace(kernel, text=f"{kernel.text[:last]}{BARRIER} {kernel.text[last:]}")

    ((_, row),) = judge([SOFTMAX], "model")
    assert row.barriers == 2 and row.unneeded == () and row.is_good
    monkeypatch.setattr(cuda_judge, "write", barred)
    ((_, doubled),) = judge([SOFTMAX], "model")
    assert doubled.barriers == row.barriers + 1 and doubled.unneeded == (row.barriers - 1, row.barriers)
    assert not doubled.is_good and f"barrier {doubled.barriers} of {doubled.barriers} is removed" in reason(doubled)


def test_kernels_are_added_to_those_on_record(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A recorded kernel is not judged again but gains one more model; a model that was omitted before no longer counts as omitted."""
    given: list[tuple[str, list[KernelRequest] | str]] = [("first", [STRIDED]), ("second", "there was no time")]
    monkeypatch.setattr(cuda_kernels, "gather", lambda *_: iter(given))
    monkeypatch.setattr(cuda_kernels, "RESULTS", tmp_path)
    monkeypatch.setattr(cuda_kernels, "commit", lambda: "earlier")
    assert main(["--record"]) == 0
    given[:] = [("second", [STRIDED, SOFTMAX])]
    monkeypatch.setattr(cuda_kernels, "commit", lambda: "later")
    assert main(["--record", "--add"]) == 0
    rows, left_out = on_record(tmp_path)
    assert [(row.symbol, row.models, row.commit) for row in rows] == [
        (STRIDED.symbol, ("first", "second"), "earlier"), (SOFTMAX.symbol, ("second",), "later"),
    ]  # fmt: skip
    assert not left_out and all(row.is_good for row in rows)
    assert "Judged at commit later: 1 kernels." in (tmp_path / "cuda_kernels.md").read_text()
    given[:] = [("first", [SOFTMAX])]
    assert main(["--record", "--add"]) == 0
    rows, _ = on_record(tmp_path)
    assert [(row.symbol, row.models) for row in rows] == [(STRIDED.symbol, ("second",)), (SOFTMAX.symbol, ("second", "first"))]


def test_another_text_or_another_judge_judges_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A recorded verdict is reused unless the kernel's text or the judge changes."""
    monkeypatch.setattr(cuda_kernels, "gather", lambda *_: iter([("model", [SOFTMAX])]))
    monkeypatch.setattr(cuda_kernels, "RESULTS", tmp_path)
    judged_texts: list[str] = []
    usual = cuda_judge.judged

    def judged(module: HostModule, request: KernelRequest, kernel: GeneratedKernel, *rest: Any) -> Row:
        judged_texts.append(kernel.text)
        return usual(module, request, kernel, *rest)

    def spaced(request: KernelRequest) -> GeneratedKernel:
        kernel = write(request)
        return replace(kernel, text=f"{kernel.text}\n")

    monkeypatch.setattr(cuda_judge, "judged", judged)
    for _ in range(2):
        assert main(["--record", "--add"] if judged_texts else ["--record"]) == 0
    assert len(judged_texts) == 1
    before = digest_of(write(SOFTMAX))
    monkeypatch.setattr(cuda_judge, "write", spaced)
    assert main(["--record", "--add"]) == 0 and len(judged_texts) == 2
    monkeypatch.setattr(cuda_judge, "_judge", lambda: b"another one")
    assert main(["--record", "--add"]) == 0 and len(judged_texts) == 3
    assert digest_of(write(SOFTMAX)) != before


@needs_compiler
def test_a_kernel_that_the_compiler_refuses_costs_itself_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model's kernels are compiled for a GPU as one text; here, one of them is invalid as CUDA but valid C++ for the CPU."""

    def refused(request: KernelRequest) -> GeneratedKernel:
        kernel = write(request)
        if request is SOFTMAX:
            return kernel
        return replace(kernel, text=kernel.text.replace("{\n", "{\n#ifdef __CUDACC__\n  nonsense;\n#endif\n", 1))

    monkeypatch.setattr(cuda_judge, "write", refused)
    strided, softmax = (row for _, row in judge([STRIDED, SOFTMAX], "model"))
    assert "nonsense" in strided.exception and strided.error is None and not strided.is_good
    assert softmax.is_good and [report.architecture for report in softmax.reports] == ["sm_80", "sm_90"]


def test_a_missing_barrier_is_looked_for_in_a_few_blocks_first() -> None:
    """All blocks are searched only if the first ones show no difference."""
    request = KernelRequest(apply("Softmax", leaf(0, FEW_BLOCKS + 5, 1100), axis=1))
    kernel = write(request)
    ((text, removed), *_) = without_barriers(kernel)
    trial = Trial.of(request, kernel)
    blocks: list[int] = []

    class Counted(HostModule):
        def launch(self, symbol: str, grid: tuple[int, int, int], *arguments: Any, **named: Any) -> None:
            blocks.append(grid[0])
            super().launch(symbol, grid, *arguments, **named)

    module = compile_for_host(kernel.text + text)
    module.__class__ = Counted
    assert trial.unneeded(module, [removed]) == () and max(blocks) == FEW_BLOCKS
    assert trial.unneeded(module, [""]) == (0,) and max(blocks) == FEW_BLOCKS + 5


def test_roots_and_powers_are_judged_on_numbers() -> None:
    """A negative number below a root, or a fractional exponent, would give NaN and leave nothing to compare."""
    x, exponent, epsilon = leaf(0, 6, 300), leaf(1), leaf(2)
    mean = apply("Reshape", apply("ReduceMean", apply("Pow", x, exponent), axes=(1,)), shape=(6, 1))
    request = KernelRequest(apply("Div", x, apply("Sqrt", apply("Add", mean, epsilon))))
    values = random_operands(request)
    assert values[exponent] == 2.0 and 0.5 < values[epsilon] < 1.5 and values[x].std() > 0.9
    ((_, row),) = judge([request], "a norm")
    assert row.error is not None and row.error < 0.1 and row.barriers == 1 and not row.unneeded
