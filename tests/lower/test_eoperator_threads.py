"""Test kernels that are divided among threads, whatever their size: all operators, and reductions with few results."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import numpy as np
import pytest

import lower.targets.cpu.generator.nest as nest_module
import lower.targets.cpu.generator.unrolled as unrolled_module
from egraph.tensor import Node
from egraph.tensor.expr.index import Iterator, index, substitute
from egraph.tensor.expr.scope import Reduction
from egraph.tensor.ops import OPS, apply
from lower.eoperator.request import KernelRequest, supports
from lower.eoperator.terms import Terms
from lower.targets.cpu.generator.blocks import CHUNKS
from lower.targets.cpu.generator.generate import compile_object, generate
from lower.targets.cpu.generator.library import _link
from lower.targets.cpu.generator.split_reductions import divided as divided_reduction
from tests.support.fragments import leaf
from tests.support.kernels import Loaded, chains, check, feeds, samples


def few_results() -> list[Node]:
    x = leaf(0, 8, 5, 41)
    shapes = ((4, 6, 37), (6, 6, 120), (64, 10, 1), (2, 1, 33), (5, 7, 37), (6, 6, 128), (5, 7, 64))
    means = [apply("ReduceMean", leaf(0, *shape), axes=(0, 1)) for shape in shapes]
    below = apply("Less", apply("ReduceMean", x, axes=(0, 1)), x)  # partial results are not truth values
    return [*means, apply("Sub", x, apply("ReduceMax", x, axes=(0, 1))), apply("ReduceSum", apply("Exp", x), axes=(0, 1, 2)), below]


@pytest.fixture(scope="module")
def divided(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[KernelRequest], dict[Node, str]]:
    folder = tmp_path_factory.mktemp("divided")
    fragments = [*samples(sorted(OPS), 1), *chains(), *few_results()]
    requests = [KernelRequest(fragment) for fragment in dict.fromkeys(fragments) if supports(fragment) is None]
    scripts: dict[Node, str] = {}
    objects: list[Path] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nest_module, "SERIAL_NS", 0.0)
        patch.setattr(unrolled_module, "PARALLEL_NS", 0.0)
        for request in requests:
            function = generate(request, threads=2)
            scripts[request.fragment] = function.script()
            objects.append(folder / f"{len(objects)}.o")
            compile_object(function, objects[-1])
    _link(objects, folder / "kernels.so")
    return folder / "kernels.so", requests, scripts


@pytest.mark.parametrize("tasks", [1, 2, 3])
def test_all_operators_divided_among_any_number_of_tasks(tasks: int, divided: tuple[Path, list[KernelRequest], dict[Node, str]]) -> None:
    path, requests, _ = divided
    loaded = Loaded(path, tasks)
    for request in requests:
        check(loaded, request.symbol, request.fragment)
    assert loaded.launches > len(requests) / 3


def test_chunks_do_not_change_a_bit(divided: tuple[Path, list[KernelRequest], dict[Node, str]]) -> None:
    """Any number of tasks, from one to more than there are chunks, gives the result of one task."""
    path, requests, _ = divided
    results: dict[Node, set[bytes]] = {}
    for tasks in (1, 2, 3, 8, 11):
        loaded = Loaded(path, tasks)
        for fragment, symbol in ((request.fragment, request.symbol) for request in requests):
            output = np.zeros(fragment.type.sizes, fragment.type.dtype)
            loaded.run(symbol, [*feeds(fragment), output])
            results.setdefault(fragment, set()).add(output.tobytes())
    assert all(len(found) == 1 for found in results.values())


@pytest.mark.parametrize(("threads", "rows"), [(2, 4), (2, 5), (2, 64), (3, 7), (3, 96)])
def test_threads_have_about_as_many_rows_and_their_chunks_too(threads: int, rows: int, tmp_path: Path) -> None:
    x = leaf(0, rows, 37)
    request = KernelRequest(apply("Sub", x, apply("ReduceMean", x, axes=(1,))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nest_module, "SERIAL_NS", 0.0)
        compile_object(generate(request, threads=threads), tmp_path / "k.o")
    _link([tmp_path / "k.o"], tmp_path / "k.so")
    (values,) = feeds(request.fragment)
    written: list[list[int]] = []
    for chunk in range(threads * CHUNKS):
        loaded, output = Loaded(tmp_path / "k.so", threads * CHUNKS, only=chunk), np.full((rows, 37), np.nan, np.float32)
        loaded.run(request.symbol, [values, output])
        written.append(np.flatnonzero(~np.isnan(output).any(axis=1)).tolist())
    shares = [list(chain(*written[CHUNKS * thread : CHUNKS * (thread + 1)])) for thread in range(threads)]
    assert list(chain(*shares)) == list(range(rows))
    sizes = [len(share) for share in shares]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] - sizes[-1] <= 1
    assert max(map(len, written)) <= -(-sizes[0] // CHUNKS)


def test_reductions_with_few_results_share_out_their_terms(divided: tuple[Path, list[KernelRequest], dict[Node, str]]) -> None:
    _, _, scripts = divided
    parts = ["T.parallel(8)" in scripts[fragment] and "a1[" in scripts[fragment] for fragment in few_results()]
    assert parts == [True, True, True, False, False, False, False, True, True, True]
    # two terms are too few, an odd number of terms gives threads unlike shares, 2 x 128 numbers are too many for the stack:
    assert all("T.parallel(8)" in scripts[fragment] for fragment in few_results()[4:7])  # there, each thread has half of the results


def test_parts_of_terms_begin_where_the_reduction_does() -> None:
    table, k = Terms({"x": (1,)}, {"x": "float32"}), Iterator("k", 2, 10)
    found = divided_reduction(table, table.reduce(Reduction.SUM, (k,), table.read("x", index(k))), None, 2)
    assert found is not None
    (read,) = found.partial.children
    within = next(iterator for iterator in read.free if iterator != found.part)
    offsets = [[substitute(read.data[1], {found.part: part, within: at}).constant for at in range(4)] for part in range(2)]
    assert offsets == [[2, 3, 4, 5], [6, 7, 8, 9]]


def test_parts_are_not_written_past_the_caches() -> None:
    """Streamed data of another thread becomes visible only once that thread has signalled its end."""
    x = leaf(0, 300, 300, 64)
    script = generate(KernelRequest(apply("Sub", x, apply("ReduceMean", x, axes=(0, 1)))), threads=2).script()
    stored = [line for line in script.splitlines() if "einsat_stream" in line]
    assert "a1[" in script and stored and not any("a1" in line for line in stored)


def test_a_transpose_is_shared_out_by_rows_or_by_columns_and_not_by_both() -> None:
    for shape in ((1, 512, 64, 64), (1, 64, 64, 512)):
        perm = (0, 2, 3, 1) if shape[1] == 512 else (0, 3, 1, 2)
        script = generate(KernelRequest(apply("Transpose", leaf(0, *shape), perm=perm)), threads=2).script()
        assert script.count("T.parallel(") == 1
