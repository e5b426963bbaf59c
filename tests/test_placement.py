"""Where values lie: views as windows, the shared arena, concatenations in place, no step overwriting what is read later."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from egraph.ir import (
    Node,
    placeholder,
)  # fmt: skip
from egraph.ops import apply
from lower.compile import CompileOptions, plan_program
from lower.memory import Lifetime, plan_arena
from lower.views import contiguous, read
from runtime.plan import Buffer, Plan
from tests.lowering import GRAPHS, choose, concatenation, float32


def operation(draw: Callable[[st.SearchStrategy[Any]], Any], array: np.ndarray, node: Node) -> tuple[np.ndarray | None, Node]:
    """Draw a view; the array is None where numpy itself would have to copy."""
    match draw(st.sampled_from(["Transpose", "Reshape", "Slice"])):
        case "Transpose":
            perm = tuple(draw(st.permutations(range(array.ndim))))
            return array.transpose(perm), apply("Transpose", node, perm=perm)
        case "Reshape":
            sizes, rest = [], array.size
            while rest > 1:
                sizes.append(draw(st.sampled_from([d for d in range(1, rest + 1) if rest % d == 0])))
                rest //= sizes[-1]
            shape = tuple(sizes) or (1,)
            view, shaped = array.view(), apply("Reshape", node, shape=shape)
            try:
                view.shape = shape
            except AttributeError:
                return None, shaped
            return view, shaped
        case _:
            starts = tuple(draw(st.integers(0, n - 1)) for n in array.shape)
            steps = tuple(draw(st.integers(1, 2)) for _ in array.shape)
            ends = tuple(a - (a - n) // c * c for a, n, c in zip(starts, array.shape, steps, strict=True))
            view = array[tuple(slice(a, b, c) for a, b, c in zip(starts, ends, steps, strict=True))]
            return view, apply("Slice", node, starts=starts, ends=ends, steps=steps)


@pytest.mark.filterwarnings("ignore:Setting the shape:DeprecationWarning")
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_chain_of_views_is_read_as_the_window_that_numpy_reads(data: st.DataObject) -> None:
    """Windows equal numpy's views wherever numpy needs no copy, and are refused wherever it does."""
    shape = data.draw(st.sampled_from([(2, 3, 4, 5), (1, 12, 5), (6, 1, 4), (24,)]))
    base = np.arange(np.prod(shape)).reshape(shape)
    array, node = base, placeholder(0, float32(*shape))
    for _ in range(data.draw(st.integers(1, 4))):
        view, node = operation(data.draw, array, node)
        if view is None:
            reason = read(node, lambda leaf: contiguous(leaf.type.sizes))
            assert isinstance(reason, str) and "not adjacent" in reason
            return
        array = view
    found = read(node, lambda leaf: contiguous(leaf.type.sizes))
    assert not isinstance(found, str)
    window = found[1]
    got = as_strided(base.reshape(-1)[window.offset :], window.shape, tuple(8 * stride for stride in window.strides))
    assert np.array_equal(got, array)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 8), st.integers(0, 8)), max_size=14))
def test_values_alive_together_never_share_memory(drawn: list[tuple[int, int, int]]) -> None:
    lifetimes = [Lifetime(i, size, min(a, b), max(a, b)) for i, (size, a, b) in enumerate(drawn)]
    plan = plan_arena(lifetimes)
    for value in lifetimes:
        assert plan.offsets[value.number] % 64 == 0 and plan.offsets[value.number] + value.size_bytes <= plan.size_bytes
    for one, other in itertools.combinations(lifetimes, 2):
        if one.overlaps(other) and one.size_bytes and other.size_bytes:
            a, b = plan.offsets[one.number], plan.offsets[other.number]
            assert a + one.size_bytes <= b or b + other.size_bytes <= a


def test_the_arena_is_shared_between_steps_that_follow_each_other() -> None:
    plan = plan_arena([Lifetime(i, 1024, i, i + 1) for i in range(10)])
    assert plan.size_bytes == 2048


def test_concatenated_values_are_written_in_place(tmp_path: Path) -> None:
    graph = concatenation()
    plan, _ = plan_program(choose(graph, "onednn"), CompileOptions())
    assert [s.kind for s in plan.steps] == ["onednn"] * 4  # three convolutions and a pool; neither concatenation
    concatenated = [b for b in plan.buffers if b.area == "arena" and b.shape == (1, 16, 6, 6)]
    assert len(concatenated) == 1
    first, second = (plan.buffers[plan.steps[i].outputs[0]] for i in (0, 1))
    assert {first.offset, second.offset} <= {concatenated[0].offset, concatenated[0].offset + 4 * 36, concatenated[0].offset + 12 * 36}


def overlapping(plan: Plan) -> list[tuple[int, int]]:
    """Return pairs (step, input) where a step writes on arena memory that a later step still reads from an earlier one."""

    def span(b: Buffer) -> tuple[int, int]:
        item = np.dtype(b.dtype).itemsize
        return b.offset * item, (b.offset + 1 + sum((n - 1) * s for n, s in zip(b.shape, b.strides, strict=True))) * item

    found = []
    for reader, step in enumerate(plan.steps):
        for number in step.inputs:
            wanted = plan.buffers[number]
            if wanted.area != "arena":
                continue
            low, high = span(wanted)
            writers = [
                i for i in range(reader) for o in plan.steps[i].outputs
                if plan.buffers[o].area == "arena" and span(plan.buffers[o])[0] < high and low < span(plan.buffers[o])[1]
            ]  # fmt: skip
            last = plan.steps[writers[-1]]
            inside = [low <= span(plan.buffers[o])[0] and span(plan.buffers[o])[1] <= high for o in last.outputs]
            covers = [span(plan.buffers[o])[0] <= low and high <= span(plan.buffers[o])[1] for o in last.outputs]
            if not any(inside) and not any(covers):
                found.append((reader, number))
    return found


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("prefer", ["onednn", "tvm"])
def test_no_step_reads_what_another_has_overwritten(name: str, prefer: str) -> None:
    plan, _ = plan_program(choose(GRAPHS[name](), prefer), CompileOptions())
    assert overlapping(plan) == []
    assert Plan.from_json(plan.to_json()).to_json() == plan.to_json()
