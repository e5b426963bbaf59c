"""Extraction: shared work is counted once, programs are acyclic and distinct, and selections become programs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from random import Random

import pytest

from egraph.engine.saturate import saturate
from egraph.errors import ExtractError
from egraph.extract import extract, to_program
from egraph.extract.greedy import _best_sets, _Draft, _moves, improve
from egraph.extract.problem import build_problem, order, total
from egraph.extract.schedule import peak_bytes, schedule
from egraph.tensor import (
    Candidate,
    ENode,
    FrozenEGraph,
    Graph,
    Implementation,
    Node,
    TensorType,
    attributes,
    format_fragment,
    make,
    placeholder,
    walk,
)
from egraph.tensor.ops import apply
from tests.egraph.engine.test_saturate import graph, transpose_pair, weight

MADE = Implementation.parse("made")
TYPE = TensorType("float32", (4,))
Choice = tuple[float, tuple[int, ...]]
ALTERNATIVES = dict[int, list[Choice]]


def frozen_of(alternatives: ALTERNATIVES, roots: tuple[int, ...], leaves: tuple[int, ...]) -> FrozenEGraph:
    """Return an e-graph of the given shape, in which every alternative is an e-node with its own operator and rule."""
    classes = {}
    for n, offered in alternatives.items():
        classes[n] = tuple(ENode(f"F{i}", (), needs, f"rule{n}_{i}" if i else "") for i, (_, needs) in enumerate(offered))
    classes |= {n: (ENode("Input", attributes(name=f"x{n}"), ()),) for n in leaves}
    return FrozenEGraph(classes, dict.fromkeys(classes, TYPE), roots, frozenset(), {})


def candidates_of(alternatives: ALTERNATIVES) -> dict[int, list[Candidate]]:
    result = {}
    for number, offered in alternatives.items():
        result[number] = [
            Candidate(
                make(f"F{i}", [placeholder(j, TYPE) for j in range(len(needs))], attributes(at=number), TYPE),
                needs,
                (ENode(f"F{i}", (), needs, f"rule{number}_{i}" if i else ""),),
                MADE,
                cost,
            )
            for i, (cost, needs) in enumerate(offered)
        ]
    return result


SHARED: ALTERNATIVES = {
    0: [(1.0, (1, 2))],
    1: [(10.0, (9,)), (1.0, (3,))],
    2: [(10.0, (9,)), (1.0, (3,))],
    3: [(15.0, (9,))],
}
"""Each branch alone is cheaper with its own class (10 < 16); both together are cheaper with the shared class (1 + 1 + 1 + 15 < 21)."""


def test_shared_work_is_counted_once() -> None:
    frozen = frozen_of(SHARED, (0,), (9,))
    problem = build_problem(frozen, candidates_of(SHARED))
    by_greed = order(problem, _best_sets(problem))
    assert by_greed is not None
    assert total(by_greed) == 21.0
    (best,) = extract(frozen, candidates_of(SHARED), 1)
    assert best.cost_us == 18.0
    assert best.optimal
    assert set(best.chosen) == {0, 1, 2, 3}


def test_cycles_are_not_chosen() -> None:
    cyclic: ALTERNATIVES = {
        0: [(1.0, (1,)), (100.0, (9,))],
        1: [(1.0, (2,)), (50.0, (9,))],
        2: [(1.0, (0,)), (1.0, (1,)), (60.0, (9,))],
    }
    (best,) = extract(frozen_of(cyclic, (0,), (9,)), candidates_of(cyclic), 1)
    assert best.cost_us == 51.0
    assert {n: c.operands for n, c in best.chosen.items()} == {1: (9,), 0: (1,)}


def test_two_cycles_apart_are_both_left() -> None:
    """Extraction breaks two separate cycles, 0, 1, 2 and 3, 4, 5.

    The first is cheap to break, which must not hide the second one.
    """
    cyclic: ALTERNATIVES = {
        0: [(1.0, (1,)), (30.0, (3,))],
        1: [(1.0, (2,))],
        2: [(1.0, (0,)), (2.0, (9,))],
        3: [(1.0, (4,)), (70.0, (9,))],
        4: [(1.0, (5,)), (60.0, (0,))],
        5: [(1.0, (3,)), (50.0, (0,))],
    }
    (best,) = extract(frozen_of(cyclic, (0, 3), (9,)), candidates_of(cyclic), 1)
    assert best.optimal and best.cost_us == 1 + 1 + 2 + 1 + 1 + 50


def test_no_value_is_computed_from_itself() -> None:
    """No value is computed from itself. For example, the class of x holds x + 0."""
    selfish: ALTERNATIVES = {0: [(1.0, (0, 9)), (5.0, (1,))], 1: [(1.0, (1,)), (4.0, (9,))]}
    (best,) = extract(frozen_of(selfish, (0,), (9,)), candidates_of(selfish), 1)
    assert {n: c.operands for n, c in best.chosen.items()} == {0: (1,), 1: (9,)}


def test_what_never_ends_is_not_chosen() -> None:
    endless: ALTERNATIVES = {0: [(math.inf, (9,)), (5.0, (9, 1))], 1: [(2.0, (9,))]}
    assert extract(frozen_of(endless, (0,), (9,)), candidates_of(endless), 1)[0].cost_us == 7.0
    with pytest.raises(ExtractError, match="no kernel computes output class 0"):
        extract(frozen_of({0: [(math.inf, (9,))]}, (0,), (9,)), candidates_of({0: [(math.inf, (9,))]}), 1)


def cheapest(alternatives: ALTERNATIVES, root: int) -> float:
    """Return the cost of the cheapest program by trying all of them; infinity if there is none."""
    best = math.inf
    for picks in itertools.product(*alternatives.values()):
        chosen = dict(zip(alternatives, picks, strict=True))
        done: dict[int, float] = {}

        def compute(number: int, above: frozenset[int], chosen: Mapping[int, Choice] = chosen, done: dict[int, float] = done) -> bool:
            if number in above:
                return False
            cost, needs = chosen.get(number, (0.0, ()))
            done[number] = cost
            return all(compute(need, above | {number}) for need in needs)

        if compute(root, frozenset()):
            best = min(best, sum(done.values()))
    return best


def test_nothing_cheaper_is_found_by_trying_everything() -> None:
    random, possible = Random(3), 0
    for _ in range(40):
        count = random.randint(3, 5)
        alternatives: ALTERNATIVES = {
            n: [(float(random.randint(1, 20)), tuple(random.sample([*range(count), 9], random.randint(1, 2)))) for _ in range(3)]
            for n in range(count)
        }
        wanted = cheapest(alternatives, 0)
        frozen = frozen_of(alternatives, (0,), (9,))
        if wanted == math.inf:
            with pytest.raises(ExtractError):
                extract(frozen, candidates_of(alternatives), 1)
            continue
        possible += 1
        for k in (1, 3):
            assert extract(frozen, candidates_of(alternatives), k)[0].cost_us == wanted, alternatives
    assert possible > 20


def test_local_search_ends_where_no_other_choice_of_a_class_costs_less() -> None:
    random, moved = Random(7), 0
    for _ in range(300):
        count = random.choice((6, 12, 30))
        alternatives: ALTERNATIVES = {}
        for n in range(count):
            below = [*range(n + 1 if random.random() < 0.5 else 0, count), 99]
            offered = [(float(random.randint(1, 20)), tuple(dict.fromkeys(random.choices(below, k=2)))) for _ in range(4)]
            alternatives[n] = [*offered, (40.0, (99,))]
        problem = build_problem(frozen_of(alternatives, (0, 1), (99,)), candidates_of(alternatives))
        fallback = {n: max(offered, key=lambda choice: choice.cost) for n, offered in problem.choices.items()}
        first = order(problem, fallback)
        assert first is not None, "each class can be computed from the leaf alone"
        best = improve(problem, first, fallback)
        ordered = order(problem, best)
        assert ordered is not None and [*ordered.items()] == [*best.items()], "operands come before users"
        moved += total(best) < total(first)
        for number in best:
            for choice in problem.choices[number]:
                other = order(problem, {**fallback, **best, number: choice})
                assert other is None or total(other) >= total(best) - 1e-6, alternatives
        assert improve(problem, first, fallback, moves=0) == first
    assert moved > 100


def test_all_is_ranked_anew_where_no_number_is_left_between_two_ranks() -> None:
    alternatives: ALTERNATIVES = {n: [(1.0, (n + 1,))] for n in range(6)}
    problem = build_problem(frozen_of(alternatives, (0,), (6,)), candidates_of(alternatives))
    chosen = order(problem, {n: offered[0] for n, offered in problem.choices.items()})
    assert chosen is not None
    draft = _Draft(problem, chosen, chosen)
    draft._ranks = {number: 1.0 + math.ulp(1.0) * rank for rank, number in enumerate(each for each in chosen if each != 2)}
    draft._reorder(draft._ranks[3], draft._ranks[3])
    assert draft._ranks == {number: float(rank) for rank, number in enumerate((5, 4, 3, 2, 1, 0))}


@pytest.mark.parametrize("spacing", [1.0, 2.3e-16])
def test_a_draft_holds_what_is_needed_and_ranks_operands_before_users(spacing: float) -> None:
    """After every move, a draft holds exactly the needed classes, and operands rank before their users.

    ``spacing`` is the distance between ranks; if it is small, few numbers lie between two ranks.
    """
    random, moved = Random(3), 0
    for _ in range(250):
        count = random.choice((12, 30))
        alternatives: ALTERNATIVES = {}
        for n in range(count):
            offered = [(float(random.randint(1, 20)), tuple(dict.fromkeys(random.choices([*range(count), 99], k=2)))) for _ in range(4)]
            alternatives[n] = [*offered, (40.0, (99,))]
        problem = build_problem(frozen_of(alternatives, (0, 1), (99,)), candidates_of(alternatives))
        fallback = {n: max(offered, key=lambda choice: choice.cost) for n, offered in problem.choices.items()}
        first = order(problem, fallback)
        assert first is not None
        draft = _Draft(problem, first, fallback)
        draft._ranks = {number: 1.0 + spacing * rank for number, rank in draft._ranks.items()}
        for move in [*_moves(problem, first)]:
            before_us = total(draft.chosen)
            other = order(problem, {**fallback, **draft.chosen, **move})
            is_better = other is not None and total(other) < before_us - 1e-6
            assert draft.take(move) == is_better
            moved += is_better
            needed = order(problem, draft.chosen)
            assert needed is not None and needed.keys() == draft.chosen.keys() == draft._ranks.keys()
            assert total(draft.chosen) == pytest.approx(total(other) if is_better and other else before_us)
            below = ((number, need) for number, choice in draft.chosen.items() for need in choice.needs)
            assert all(draft._ranks[need] < draft._ranks[number] for number, need in below)
    assert moved > 30


def test_programs_are_distinct_and_sorted() -> None:
    found = extract(frozen_of(SHARED, (0,), (9,)), candidates_of(SHARED), 4)
    costs = [selection.cost_us for selection in found]
    assert costs == sorted(costs)
    programs = [tuple(sorted((n, format_fragment(c.fragment)) for n, c in selection.chosen.items())) for selection in found]
    assert len(found) >= 2
    assert len(set(programs)) == len(programs)


def test_same_choice_each_time() -> None:
    wide: ALTERNATIVES = {n: [(1.0, (n + 1,)), (1.0, (n + 1, 40)), (2.0, (40,))] for n in range(20)}
    wide |= {20: [(5.0, (99,))], 40: [(3.0, (99,))]}
    frozen = frozen_of(wide, (0,), (99,))
    assert extract(frozen, candidates_of(wide), 3)[0].chosen == extract(frozen, candidates_of(wide), 3)[0].chosen


def peak(plan: Sequence[int], needs: Mapping[int, tuple[int, ...]], roots: tuple[int, ...], sizes: Mapping[int, int]) -> int:
    """Return the peak of live bytes: values that are kept, just made, or read now or later."""

    def alive(step: int) -> int:
        read = {need for user in plan[step:] for need in needs[user]}
        return sum(sizes[n] for n in plan[: step + 1] if n in roots or n == plan[step] or n in read)

    return max(map(alive, range(len(plan))))


def test_kernels_run_in_an_order_that_keeps_little_alive() -> None:
    random, less = Random(5), 0
    roots = (0, 3)
    for _ in range(200):
        needs = {n: tuple(sorted(random.sample(range(n + 1, 9), min(8 - n, random.randint(1, 3))))) for n in range(9)}
        types = {n: TensorType("float32", (random.choice((1, 2, 8, 40)),)) for n in range(9)}
        sizes = {n: type_.size_bytes for n, type_ in types.items()}
        depth_first: dict[int, None] = {}

        def visit(number: int, done: dict[int, None] = depth_first, needs: Mapping[int, tuple[int, ...]] = needs) -> None:
            for need in needs[number]:
                visit(need)
            done[number] = None

        for root in roots:
            visit(root)
        classes = {n: (ENode("F", (), needs[n]),) for n in depth_first}
        frozen = FrozenEGraph(classes, {n: types[n] for n in classes}, roots, frozenset(), {})
        plan = schedule(frozen, {n: Candidate(placeholder(0, TYPE), needs[n], (), MADE) for n in classes})
        assert sorted(plan) == sorted(classes) and all(plan.index(need) < plan.index(n) for n in plan for need in needs[n])
        found = peak(plan, needs, roots, sizes)
        assert found == peak_bytes(plan, needs, roots, sizes)
        less += found < peak(tuple(depth_first), needs, roots, sizes)
    assert less > 50


def test_root_without_kernel_is_an_error() -> None:
    lonely: ALTERNATIVES = {0: [(1.0, (1,))], 1: [(1.0, (0,))]}
    with pytest.raises(ExtractError, match="no kernel computes output class 0"):
        extract(frozen_of(lonely, (0,), ()), candidates_of(lonely), 1)


def one_kernel_a_node(frozen: FrozenEGraph) -> dict[int, list[Candidate]]:
    result: dict[int, list[Candidate]] = {}
    for number, nodes in frozen.classes.items():
        for node in nodes:
            if node.children:
                leaves = [placeholder(i, frozen.types[c], constant=c in frozen.constants) for i, c in enumerate(node.children)]
                fragment = make(node.op, leaves, node.attributes, frozen.types[number])
                result.setdefault(number, []).append(Candidate(fragment, node.children, (node,), MADE, 1.0))
    return result


def program_of(start: Graph) -> tuple[Graph, list[str], tuple[tuple[str, ...], ...]]:
    frozen = saturate(start, [transpose_pair]).frozen
    (best,) = extract(frozen, one_kernel_a_node(frozen), 1)
    program = to_program(frozen, best, start)
    return program.graph, [kernel.fragment.op for kernel in program.kernels], tuple(kernel.rules for kernel in program.kernels)


def test_program_is_rebuilt() -> None:
    x = make("Input", (), attributes(name="x"), TensorType("float32", (4, 6)))
    there = apply("Transpose", x, perm=(1, 0))
    middle = apply("Relu", apply("Transpose", there, perm=(1, 0)))
    w = apply("Neg", weight("w", 6, 5))
    root = apply("MatMul", middle, w)
    plain = graph(root, x)
    origins: dict[Node, tuple[str, ...]] = {middle: ("relu_1",), root: ("matmul_1",)}
    start = Graph("named", plain.inputs, plain.outputs, plain.tensors, origins)
    rebuilt, ops, _ = program_of(start)
    assert ops == ["Relu", "MatMul"]
    goal = apply("MatMul", apply("Relu", x), w)
    assert rebuilt.outputs == (("y0", goal), ("y1", x))
    assert rebuilt.origins[goal] == ("matmul_1",)
    assert rebuilt.origins[goal.inputs[0]] == ("relu_1",)


def test_constants_take_their_shortest_form() -> None:
    """A constant is extracted in its shortest form. For example, a weight is also the transpose of its transpose."""
    x, w = make("Input", (), attributes(name="x"), TensorType("float32", (4, 6))), weight("w", 6, 5)
    rebuilt, ops, _ = program_of(graph(apply("MatMul", x, apply("Transpose", apply("Transpose", w, perm=(1, 0)), perm=(1, 0)))))
    assert ops == ["MatMul"] and rebuilt.outputs == (("y0", apply("MatMul", x, w)),)


def test_kernels_follow_their_operands() -> None:
    x = make("Input", (), attributes(name="x"), TensorType("float32", (4, 6)))
    left = apply("Relu", apply("Exp", x))
    right = apply("Neg", apply("Abs", x))
    start = graph(apply("Add", left, right))
    frozen = saturate(start, []).frozen
    (best,) = extract(frozen, one_kernel_a_node(frozen), 1)
    program = to_program(frozen, best, start)
    done: set[Node] = {x}
    for kernel in program.kernels:
        assert done.issuperset(kernel.inputs)
        done.add(kernel.output)
    assert [node for _, node in program.graph.outputs] == [program.kernels[-1].output]
    assert set(walk(program.graph.roots)) == done
