"""Test where values are stored: views as windows, shared arena, concatenations in place; no value is overwritten before its last read."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from egraph.onnx import importer
from egraph.optimize.folding import Folder
from egraph.tensor import VIEW, Graph, Implementation, Kernel, Node, Program, attributes, make, placeholder, placeholders, walk
from egraph.tensor.ops import apply
from egraph.tensor.ops.reference import evaluate
from lower.compile import CompileOptions, plan_program
from lower.drafts import Draft, order
from lower.memory import APART_BYTES, Lifetime, plan_arena
from lower.placement import place_all
from lower.targets.cpu.generator import may_overwrite
from lower.views import contiguous, read
from runtime.plan import Plan
from tests.support.graphs import random_model
from tests.support.implementations import GENERATED
from tests.support.lowering import GRAPHS, choose, concatenation, float32


def operation(draw: Callable[[st.SearchStrategy[Any]], Any], array: np.ndarray, node: Node) -> tuple[np.ndarray | None, Node]:
    """Draw a view. The array is None if numpy itself would have to copy."""
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
    """A window equals numpy's view if numpy needs no copy, and is refused if it does."""
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


SIZES = st.one_of(st.integers(0, 300), st.integers(1 << 20, 1 << 22))
"""In bytes: few and many together, so that some draws share memory."""


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(SIZES, st.integers(0, 8), st.integers(0, 8)), max_size=14), st.integers(1, 2))
def test_values_alive_together_never_share_memory(drawn: list[tuple[int, int, int]], threads: int) -> None:
    lifetimes = [Lifetime(i, size, min(a, b), max(a, b)) for i, (size, a, b) in enumerate(drawn)]
    plan = plan_arena(lifetimes, threads)
    for value in lifetimes:
        assert plan.offsets[value.number] % 64 == 0 and plan.offsets[value.number] + value.size_bytes <= plan.size_bytes
    for one, other in itertools.combinations(lifetimes, 2):
        if one.overlaps(other) and one.size_bytes and other.size_bytes:
            a, b = plan.offsets[one.number], plan.offsets[other.number]
            assert a + one.size_bytes <= b or b + other.size_bytes <= a


def test_the_arena_is_shared_between_steps_that_follow_each_other() -> None:
    size = APART_BYTES // 8
    plan = plan_arena([Lifetime(i, size, i, i + 1) for i in range(10)], threads=2)
    assert plan.size_bytes == 2 * size


def test_few_bytes_are_not_shared_where_threads_would_take_them_from_each_other() -> None:
    size = APART_BYTES // 8
    lifetimes = [Lifetime(i, size - 1, i, i + 1) for i in range(8)]
    assert plan_arena(lifetimes, threads=1).size_bytes == 2 * size
    plan = plan_arena(lifetimes, threads=2)
    assert [plan.offsets[i] for i in range(8)] == [i * size for i in range(8)] and plan.size_bytes == APART_BYTES


def test_plans_are_placed_for_their_threads() -> None:
    programs = [choose(make_graph(), "onednn") for make_graph in GRAPHS.values()]
    alone, divided = ([plan_program(one, CompileOptions(threads=threads))[0].arena_bytes for one in programs] for threads in (1, 2))
    assert sum(alone) < sum(divided)


def test_concatenated_values_are_written_in_place(tmp_path: Path) -> None:
    graph = concatenation()
    plan, _ = plan_program(choose(graph, "onednn"), CompileOptions())
    assert [s.kind for s in plan.steps] == ["onednn", "onednn", "tvm", "onednn"]  # three convolutions and a pool; neither concatenation
    concatenated = [b for b in plan.buffers if b.area == "arena" and b.shape == (1, 16, 6, 6)]
    assert len(concatenated) == 1
    first, second = (plan.buffers[plan.steps[i].outputs[0]] for i in (0, 1))
    assert {first.offset, second.offset} <= {concatenated[0].offset, concatenated[0].offset + 4 * 36, concatenated[0].offset + 12 * 36}


class Simulation:
    """Memory that records, for each byte, the value and element that was written there last."""

    def __init__(self, program: Program) -> None:
        self.order = order(program)
        self.placement = place_all(program, self.order, may_overwrite)
        self.areas: dict[tuple[str, str], np.ndarray] = {}
        self.tags: dict[Node, np.ndarray] = {}
        self.count = self.overwritten = 0
        for node in walk(program.graph.roots):
            if node in self.placement.locations and node.op in ("Input", "Constant"):
                self.write(node)

    def place(self, node: Node) -> tuple[np.ndarray, np.ndarray]:
        """Return the area of a value and the byte positions of its elements, one row per element."""
        buffer = self.placement.buffer(self.placement.locations[node])
        steps = (np.arange(size) * stride for size, stride in zip(buffer.shape, buffer.strides, strict=True))
        elements = buffer.offset + sum(np.ix_(*steps), np.zeros(buffer.shape, np.int64)) if buffer.shape else np.array(buffer.offset)
        item = np.dtype(buffer.dtype).itemsize
        positions = elements.reshape(-1, 1) * item + np.arange(item)
        size = self.placement.arena_bytes if buffer.area == "arena" else int(positions.max()) + 1
        area = self.areas.get((buffer.area, buffer.key), np.full(0, -1))
        if len(area) < size:
            area = self.areas[buffer.area, buffer.key] = np.concatenate([area, np.full(size - len(area), -1)])
        return area, positions

    def write(self, node: Node) -> None:
        self.tags[node] = np.arange(self.count, self.count + node.type.elements).reshape(node.type.sizes)
        self.count += node.type.elements
        area, positions = self.place(node)
        area[positions] = self.tags[node].reshape(-1, 1)

    def holds(self, node: Node) -> bool:
        """Return whether memory holds the value."""
        if node.op == "Constant" and node not in self.tags:
            self.write(node)
        area, positions = self.place(node)
        return bool((area[positions] == self.tags[node].reshape(-1, 1)).all())

    def moved(self, kernel: Kernel) -> None:
        """Record the elements of a view, or of a concatenation that needs no step."""
        leaves = dict(zip(placeholders(kernel.fragment), (self.tags[node] for node in kernel.inputs), strict=True))
        self.tags[kernel.output] = evaluate([kernel.fragment], leaves)[0].astype(np.int64)

    def run(self, draft: Draft) -> None:
        """Read the operands and write the results. Only an operand that the kernel may overwrite can be lost."""
        kernel = draft.kernels[0]
        assert all(map(self.holds, draft.inputs)), f"an operand of {kernel.output} is gone"
        for node in draft.outputs:
            self.write(node)
        assert all(map(self.holds, draft.outputs)), f"results of one step lie over each other: {kernel.output}"
        allowed = may_overwrite(kernel.fragment) if kernel.implementation.is_generated else frozenset()
        gone = [node for node in draft.inputs if not self.holds(node)]
        for node in gone:
            (_, before), (_, after) = self.place(node), self.place(kernel.output)
            index = kernel.inputs.index(node)
            assert index in allowed and kernel.inputs.count(node) == 1 and np.array_equal(before, after), kernel.output
        assert len(gone) <= 1
        self.overwritten += len(gone)


def simulated(program: Program) -> int:
    """Run a program in memory that records its writers; return how many operands were overwritten."""
    simulation = Simulation(program)
    for step, views in enumerate(simulation.order.views):
        for kernel in views:
            simulation.moved(kernel)
        if step in simulation.placement.dropped:
            simulation.moved(simulation.order.drafts[step].kernels[0])
        elif step < len(simulation.order.drafts):
            simulation.run(simulation.order.drafts[step])
    assert all(map(simulation.holds, program.graph.roots)), "an output is not there at the end"
    return simulation.overwritten


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("prefer", ["onednn", "tvm"])
def test_no_step_reads_what_another_has_overwritten(name: str, prefer: str) -> None:
    program = choose(GRAPHS[name](), prefer)
    simulated(program)
    plan, _ = plan_program(program, CompileOptions())
    assert Plan.from_json(plan.to_json()).to_json() == plan.to_json()


def test_values_of_random_programs_are_where_they_are_read() -> None:
    tried = overwritten = dropped = 0
    for seed in range(40):
        graph = importer.load(random_model(Random(seed), 12)).graph
        if any(node.op == "Opaque" for node in walk(graph.roots)):
            continue
        for prefer in ("onednn", "tvm"):
            program = Folder(graph).fold(choose(graph, prefer))
            overwritten += simulated(program)
            dropped += sum(kernel.fragment.op == "Concat" for kernel in program.kernels)
            tried += 1
    assert tried > 60 and overwritten > 30 and dropped > 20


def program_of(*kernels: tuple[Node, tuple[Node, ...], Node, Implementation]) -> Program:
    outputs = tuple((f"y{k}", output) for k, (_, _, output, _) in enumerate(kernels))
    made = tuple(Kernel(fragment, inputs, output, how) for fragment, inputs, output, how in kernels)
    inputs = tuple(dict.fromkeys(node for node in walk(one for _, one in outputs) if node.op == "Input"))
    return Program(Graph("placed", inputs, outputs[-2:], {}), made, 0.0)


def test_an_operand_that_is_also_read_through_a_view_is_not_overwritten() -> None:
    x = make("Input", (), attributes(name="x"), float32(4, 6))
    first, second = placeholder(0, float32(4, 6)), placeholder(1, float32(6, 4))
    h = apply("Relu", x)
    r = apply("Reshape", h, shape=(6, 4))
    fragment = apply("Add", first, apply("Transpose", second, perm=(1, 0)))
    assert 0 in may_overwrite(fragment)
    y = apply("Add", h, apply("Transpose", r, perm=(1, 0)))
    last = apply("Exp", y)
    program = program_of(
        (apply("Relu", first), (x,), h, GENERATED),
        (apply("Reshape", first, shape=(6, 4)), (h,), r, VIEW), (fragment, (h, r), y, GENERATED),
        (apply("Exp", first), (y,), last, GENERATED),
    )  # fmt: skip
    simulated(replace(program, graph=replace(program.graph, outputs=(("y", last),))))


def test_a_value_of_two_concatenations_stands_in_both() -> None:
    x = make("Input", (), attributes(name="x"), float32(2, 3))
    one, two = placeholder(0, float32(2, 3)), placeholder(1, float32(2, 3))
    a, b, c = (apply(op, x) for op in ("Relu", "Tanh", "Exp"))
    both = apply("Concat", one, two, axis=0)
    program = program_of(
        *((apply(node.op, one), (x,), node, GENERATED) for node in (a, b, c)),
        *((both, (a, other), apply("Concat", a, other, axis=0), GENERATED) for other in (b, c)),
    )
    simulated(program)
    assert len(Simulation(program).placement.dropped) == 1


def test_a_part_of_a_value_is_not_taken_for_the_whole_where_it_is_concatenated() -> None:
    """A slice of the outer axis is a view.

    If it were written in place, the whole value would overlap the neighbour in the concatenation.
    """
    x = make("Input", (), attributes(name="x"), float32(4, 3))
    whole, part = placeholder(0, float32(4, 3)), placeholder(0, float32(2, 3))
    ends: dict[str, Any] = {"starts": (0, 0), "ends": (2, 3), "steps": (1, 1)}
    a, b = apply("Relu", x), apply("Tanh", x)
    upper = apply("Slice", a, **ends)
    both = apply("Concat", upper, b, axis=0)
    program = program_of(
        (apply("Relu", whole), (x,), a, GENERATED), (apply("Slice", whole, **ends), (a,), upper, VIEW),
        (apply("Tanh", whole), (x,), b, GENERATED),
        (apply("Concat", part, placeholder(1, float32(4, 3)), axis=0), (upper, b), both, GENERATED),
    )  # fmt: skip
    program = replace(program, graph=replace(program.graph, outputs=(("y", both),)))
    simulated(program)
    assert not Simulation(program).placement.dropped
