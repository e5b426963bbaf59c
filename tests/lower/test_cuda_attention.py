"""Compare attention in one CUDA kernel with its meaning, in three thread orders; check what the compiler reports."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from egraph.tensor import Graph, Program
from egraph.tensor.ops import apply
from egraph.tensor.ops.reference import evaluate
from lower.attention.match import AttentionCall, match
from lower.compile import CompileOptions, compile_program
from lower.targets import lowering
from lower.targets.cuda.generator.attention import Blocking
from lower.targets.cuda.generator.compiler import MISSING, MULTIPROCESSORS, compile_text, has_compiler
from runtime import Session
from runtime.devices.cuda import kernels
from runtime.devices.cuda.kernels import Launch
from runtime.devices.cuda.program import CudaProgram
from runtime.devices.cuda.recorded import RecordedDriver
from runtime.devices.cuda.shim import ORDERS
from runtime.errors import KernelError
from tests.lower.test_attention import attended, constant, cut, heads
from tests.runtime.test_devices import constants
from tests.support.lowering import Model, choose

TARGET = lowering("cuda:h100").target
Case = tuple[tuple[int, ...], tuple[int, int, int, int], str, str, bool, str]
CASES: tuple[Case, ...] = (
    ((2, 3), (33, 70, 40, 35), "bias", "queries", False, ""),
    ((), (5, 3, 7, 2), "", "", False, ""),
    ((3,), (40, 65, 33, 64), "rows and columns", "both", False, ""),
    ((1,), (31, 32, 64, 130), "condition", "scores", False, ""),
    ((2,), (17, 67, 20, 33), "columns", "", True, ""),
    ((2,), (17, 67, 20, 33), "input", "", False, "weights"),
    ((1, 2), (34, 40, 8, 16), "", "", True, "condition"),
    ((2,), (33, 33, 40, 40), "", "", False, "rows"),
)


WIDE: Case = ((1,), (64, 64, 128, 256), "bias", "", True, "weights")
DEEP: Case = ((2,), (35, 70, 100, 140), "rows and columns", "", False, "")
ONE_STEP: Case = ((2,), (17, 30, 20, 33), "columns", "", True, "weights")
MANY: Case = ((97,), (60, 40, 12, 40), "", "", False, "")
"""Enough blocks for eight rows a warp."""


def built(case: Case) -> Graph:
    batch, (rows, columns, depth, width), mask, factor, is_guarded, after = case
    m = Model()
    q, k, v = m.input(*batch, rows, depth), m.input(*batch, columns, depth), m.input(*batch, columns, width)
    return m.graph(attended(m, q, k, v, mask, factor, guarded=is_guarded, after=after))


def one_kernel(graph: Graph, folder: Path) -> Program:
    program = choose(graph, "attention", target=TARGET)
    launched = [kernel.implementation.text for kernel in program.kernels if not kernel.implementation.is_free]
    assert launched == ["attention.blocks"]
    plan = compile_program(program, folder, CompileOptions(target=TARGET))
    assert [step.kind for step in plan.steps] == ["cuda"]
    return program


def drawn(graph: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {node.string("name"): random.standard_normal(node.type.sizes).astype(node.type.dtype) for node in graph.inputs}


def in_every_order(graph: Graph, program: Program, folder: Path, feeds: dict[str, np.ndarray]) -> None:
    """Compare the result of the recorded device with the meaning; the bits must be equal in every order."""
    leaves = {node: feeds[node.string("name")] for node in graph.inputs} | constants(program)
    with np.errstate(all="ignore"):
        (meant,) = evaluate(graph.roots, leaves)
    with Session(folder, on="cuda:h100") as session:
        loaded = session.executable.loaded
        assert isinstance(loaded, CudaProgram) and isinstance(loaded.driver, RecordedDriver)
        results = []
        for loaded.driver.order in ORDERS:
            results.append(session.run(None, feeds)[0])
    assert len({each.tobytes() for each in results}) == 1
    np.testing.assert_allclose(results[0], meant, rtol=1e-5, atol=1e-5)


Compiled = Callable[[Case], tuple[Graph, Program, Path]]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    """Return a function that compiles each case once for all tests. A test that changes the folder must copy it."""

    @cache
    def compile_case(case: Case) -> tuple[Graph, Program, Path]:
        graph, folder = built(case), tmp_path_factory.mktemp("attention")
        return graph, one_kernel(graph, folder), folder

    return compile_case


@pytest.mark.parametrize("case", [*CASES, DEEP, MANY, ONE_STEP], ids=str)
def test_attention_is_one_kernel_that_means_what_its_operators_do(case: Case, compiled: Compiled) -> None:
    graph, program, folder = compiled(case)
    in_every_order(graph, program, folder, drawn(graph))


def test_heads_are_read_out_of_one_product_and_written_side_by_side(tmp_path: Path) -> None:
    m = Model()
    wide = m.input(2, 37, 3 * 40)
    q, k, v = (heads(cut(wide, 2, part * 40, (part + 1) * 40), 2) for part in range(3))
    y = apply("Transpose", attended(m, q, k, v, "bias", "queries", guarded=False), perm=(0, 2, 1, 3))
    graph = m.graph(apply("Reshape", y, shape=(2, 37, 40)))
    in_every_order(graph, one_kernel(graph, tmp_path), tmp_path, drawn(graph))


@pytest.mark.parametrize("replacement", [None, 0.5, np.inf])
def test_rows_without_keys_infinities_and_what_is_no_number(replacement: float | None, tmp_path: Path) -> None:
    """The first keys of a row, or all of them, may be masked. Scores may be infinite or NaN."""
    m = Model()
    q, k, v = m.input(1, 40, 16), m.input(1, 70, 16), m.input(1, 70, 8)
    hidden = np.zeros((40, 70))
    hidden[3], hidden[5, :64], hidden[7, 1:], hidden[9, 40], hidden[11, 2] = -np.inf, -np.inf, -np.inf, np.inf, np.nan
    p = apply("Softmax", apply("Add", apply("MatMul", q, apply("Transpose", k, perm=(0, 2, 1))), constant(m, hidden)), axis=2)
    if replacement is not None:
        p = apply("Where", apply("IsNaN", p), constant(m, replacement), p)
    graph = m.graph(apply("MatMul", p, v))
    feeds = drawn(graph)
    if replacement == np.inf:
        feeds[v.string("name")] = np.abs(feeds[v.string("name")])  # sums are infinite, but none is NaN
    in_every_order(graph, one_kernel(graph, tmp_path), tmp_path, feeds)


def test_neighbouring_threads_stage_neighbouring_numbers(tmp_path: Path) -> None:
    """If keys come as columns, their neighbours in memory are the columns, so neighbouring threads load neighbouring columns."""
    m = Model()
    q, k, v = m.input(2, 40, 16), m.input(2, 16, 70), m.input(2, 70, 8)
    graph = m.graph(apply("MatMul", apply("Softmax", apply("MatMul", q, k), axis=2), v))
    program = one_kernel(graph, tmp_path)
    in_every_order(graph, program, tmp_path, drawn(graph))
    ((_, kernel),) = kernels.read(tmp_path / kernels.FILE).items()
    staged = re.findall(r"const int r = at (.) \d+;\n[^\n]*\n\s*(\w+)\[r\]\[c\]", kernel.text)
    assert staged == [("/", "queries"), ("%", "keys"), ("/", "values")]


@pytest.mark.parametrize(
    ("case", "count"), [(CASES[0], 3), (CASES[1], 2), (CASES[5], 5), (ONE_STEP, 3), (DEEP, 5)],
    ids=["whole rows", "one step", "two passes", "two passes of one step", "parts of rows and columns"],
)  # fmt: skip
def test_each_barrier_is_needed(case: Case, count: int, compiled: Compiled, tmp_path: Path) -> None:
    graph, program, folder = compiled(case)
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    path = tmp_path / kernels.FILE
    stored = json.loads(path.read_text())
    ((symbol, kernel),) = stored.items()
    barriers = list(re.finditer(r"__sync(threads|warp)\(\);", kernel["text"]))
    assert len(barriers) == count
    for barrier in barriers:
        text = kernel["text"][: barrier.start()] + kernel["text"][barrier.end() :]
        path.write_text(json.dumps({symbol: {**kernel, "text": text, "cubin": None}}))
        with pytest.raises((AssertionError, KernelError)):
            in_every_order(graph, program, tmp_path, drawn(graph))


def test_a_warp_has_as_many_rows_as_leave_blocks_for_a_whole_gpu(compiled: Compiled) -> None:
    """Twelve heads of 128 rows are only 48 blocks of 32 rows, a third of an H100, so a warp takes fewer rows."""
    def block_rows(*shape: int) -> int:
        m = Model()
        q, k, v = m.input(*shape, 16), m.input(shape[0], 40, 16), m.input(shape[0], 40, 16)
        program = choose(m.graph(attended(m, q, k, v, "", "", guarded=False)), "attention", target=TARGET)
        call = match(program.kernels[-1].fragment)
        assert isinstance(call, AttentionCall)
        return Blocking.of(call).rows

    assert [block_rows(*shape) for shape in ((12, 128), (24, 128), (4, 128), (500, 8), (500, 17))] == [16, 32, 8, 8, 32]
    text = (compiled(MANY)[2] / kernels.FILE).read_text()
    assert "warp * 8 + r" in text


@pytest.mark.skipif(not has_compiler(), reason=MISSING)
@pytest.mark.parametrize("architecture", list(MULTIPROCESSORS))
def test_attention_compiles_and_spills_nothing(architecture: str, compiled: Compiled) -> None:
    for case in (*CASES, WIDE, DEEP, MANY):
        ((_, kernel),) = kernels.read(compiled(case)[2] / kernels.FILE).items()
        launches = [Launch(each.symbol, each.grid, each.block, each.shared_bytes, each.parameters) for each in kernel.launches]
        code = compile_text(kernel.text, launches, architecture)
        assert code is not None
        assert (code[1].spill_bytes, code[1].stack_bytes) == (0, 0), (case, code[1])


def test_wide_values_are_left_to_products() -> None:
    def program(width: int) -> list[str]:
        m = Model()
        q, k, v = m.input(8, 4), m.input(8, 4), m.input(8, width)
        kernels = choose(m.graph(attended(m, q, k, v, "", "", guarded=False)), "attention", target=TARGET).kernels
        return [kernel.implementation.text for kernel in kernels]

    assert "attention.blocks" in program(256) and "attention.blocks" not in program(257)

