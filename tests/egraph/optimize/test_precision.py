"""Precision as a choice of the search: kernels that round their operands, what they may cost, and how programs stay within it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from egraph.engine.saturate import Limits, saturate
from egraph.extract import extract
from egraph.extract.greedy import greedy
from egraph.extract.problem import Choice, Problem, total, total_error
from egraph.extract.solver import solve
from egraph.optimize.budget import Budget
from egraph.optimize.chooser import Chooser
from egraph.optimize.kernels import kernel_program, rounded
from egraph.optimize.progress import Progress
from egraph.tensor import Candidate, ENode, Implementation, Node, Selection, Target, TensorType, placeholder
from egraph.tensor.ops import apply
from egraph.tolerance import Tolerance
from lower.candidates import candidates
from lower.cost.model import CostModel, key_of
from lower.cost.rounding import UNIT_ROUNDOFF, ErrorModel, largest_error, usual_error
from lower.roofline import DeviceSpeed
from lower.targets import lowering
from runtime.profile import Database, Record
from tests.support.lowering import Model, float32

RANDOM = np.random.default_rng(5)
BF16 = lowering().implementation("onednn.matmul@bf16")


def rounded_to_bf16(array: np.ndarray) -> np.ndarray:
    return array.astype(ml_dtypes.bfloat16).astype(np.float64)


@pytest.mark.parametrize("text", ["onednn.matmul@bf16", "onednn.convolution@bf16", "onednn.matmul", "tvm", "opaque"])
def test_the_text_of_an_implementation_says_its_precision(text: str) -> None:
    target = Target("cpu", precisions=("bf16",))
    parsed = Implementation.parse(text, target)
    assert parsed.text == text
    assert Implementation.parse(parsed.text, target) == parsed
    assert parsed.precision == ("bf16" if "@" in text else "float32")
    assert parsed.in_precision("float32").in_precision(parsed.precision) == parsed
    assert parsed.library == ("onednn" if "." in text else "")


@pytest.mark.parametrize("length", [1, 4, 64, 1024])
@pytest.mark.parametrize("spread", [0.0, 3.0])
def test_the_error_of_rounded_products_is_within_its_bound(length: int, spread: float) -> None:
    """|sum bf16(a) bf16(b) - sum a b| <= bound * sum |a b| for all draws, signed or not, and the bound is not vacuous."""
    a, b = (RANDOM.standard_normal((4000, length)) * np.exp(spread * RANDOM.standard_normal((4000, length))) for _ in (0, 1))
    a, b = a.astype(np.float32).astype(np.float64), b.astype(np.float32).astype(np.float64)
    error = np.abs((rounded_to_bf16(a) * rounded_to_bf16(b)).astype(np.float32).sum(axis=1, dtype=np.float32) - (a * b).sum(axis=1))
    size = np.abs(a * b).sum(axis=1)
    assert np.all(error <= largest_error("bf16", length) * size)
    assert np.max(error / size) > largest_error("bf16", length) / (4 * math.sqrt(length))


@pytest.mark.parametrize("length", [1, 64, 1024])
def test_the_bound_is_reached(length: int) -> None:
    """Equal numbers just below the middle between two bf16 numbers are all rounded down."""
    number = 1 + 2.0**-8 - 2.0**-20
    error = abs(length * rounded_to_bf16(np.array([number]))[0] ** 2 - length * number**2) / (length * number**2)
    assert 0.97 * largest_error("bf16", length) < error < largest_error("bf16", length)
    assert largest_error("bf16", length) < 2.01 * UNIT_ROUNDOFF["bf16"] + 1e-7 * length


@pytest.mark.parametrize("length", [1, 16, 256, 4096])
def test_the_usual_error_of_rounded_products_is_what_is_drawn(length: int) -> None:
    a, b = (2 ** RANDOM.uniform(-2, 2, (2000, length)) * RANDOM.choice([-1, 1], (2000, length)) for _ in (0, 1))
    error = (rounded_to_bf16(a) * rounded_to_bf16(b)).sum(axis=1) - (a * b).sum(axis=1)
    drawn = math.sqrt(np.mean(error**2) / np.mean(np.sum((a * b) ** 2, axis=1)))
    assert drawn == pytest.approx(usual_error("bf16"), rel=0.15)


def product(rows: int = 8, inner: int = 16, columns: int = 4) -> Node:
    return apply("MatMul", placeholder(0, float32(rows, inner)), placeholder(1, TensorType("float32", (inner, columns)), constant=True))


def test_kernels_are_offered_in_the_precisions_of_the_target() -> None:
    """A convolution and a product have twins that round, a pool has none; unless bf16 is requested, no kernel has one."""
    b = Model()
    frozen = saturate(b.graph(apply("Relu", b.conv(b.input(1, 3, 8, 8), 4, 1))), (), Limits()).frozen
    usual = candidates(frozen, lowering().target)
    texts = {one.implementation.text for options in usual.values() for one in options}
    assert not any("@" in text for text in texts)
    offered = candidates(frozen, Target("cpu", lowering().target.architecture, lowering().target.features, precisions=("bf16",)))
    for number, options in usual.items():
        plain = {(one.fragment, one.operands, one.implementation.text) for one in options}
        rounding = {(one.fragment, one.operands, one.implementation.text) for one in offered[number]} - plain
        wanted = {(f, o, f"{t}@bf16") for f, o, t in plain if t in ("onednn.matmul", "onednn.convolution")}
        assert rounding == wanted
    assert any("@bf16" in one.implementation.text for options in offered.values() for one in options)


def test_what_a_rounding_kernel_is_compared_with_rounds_too() -> None:
    fragment = apply("Relu", product())
    graph = rounded(kernel_program(fragment, BF16, seed=0).graph, "bf16")
    (relu,) = graph.roots
    (matmul,) = relu.inputs
    assert [operand.op for operand in matmul.inputs] == ["Cast", "Cast"]
    assert [operand.inputs[0].type.dtype for operand in matmul.inputs] == ["bfloat16", "bfloat16"]
    assert rounded(kernel_program(fragment, BF16, seed=0).graph, "float32").roots[0].inputs[0].inputs[0].op != "Cast"


def chain(length: int, errors: Mapping[int, float]) -> Problem:
    """Return a chain of classes; each has an exact kernel of 10 us and one of 4 us (the first: 9 us) with an error."""
    choices = {}
    for number in range(length):
        needs = (number + 1,) if number + 1 < length else ()
        node = ENode("MatMul", (), needs)
        exact = Candidate(product(), needs, (node,), Implementation("library", "onednn.matmul"), 10.0)
        fast = Candidate(product(), needs, (node,), BF16, 9.0 if number == 0 else 4.0, error=errors[number])
        choices[number] = (Choice(exact, needs), Choice(fast, needs))
    return Problem((0,), choices)


def test_the_cheapest_program_within_the_accepted_error_is_found() -> None:
    """Of six kernels with an error of a third each, only three fit, without the one that saves least. An error above 1 never fits."""
    problem = chain(6, dict.fromkeys(range(6), 0.33))
    by_greed = greedy(problem)
    assert total_error(by_greed) <= 1
    solution = solve(problem, by_greed, 5.0, 0)
    assert solution is not None and solution.optimal
    assert total_error(solution.chosen) == pytest.approx(0.99)
    assert total(solution.chosen) == pytest.approx(3 * 10 + 3 * 4)
    assert not solution.chosen[0].error
    assert total_error(greedy(chain(6, dict.fromkeys(range(6), 2.0)))) == 0
    solution = solve(chain(6, dict.fromkeys(range(6), 2.0)), greedy(chain(6, dict.fromkeys(range(6), 2.0))), 5.0, 0)
    assert solution is not None and total_error(solution.chosen) == 0


@pytest.mark.parametrize("seed", range(5))
def test_greed_and_the_solver_stay_within_the_accepted_error(seed: int) -> None:
    generator = np.random.default_rng(seed)
    problem = chain(30, dict(enumerate(generator.exponential(0.15, 30))))
    by_greed = greedy(problem)
    assert total_error(by_greed) <= 1
    solution = solve(problem, by_greed, 5.0, seed)
    assert solution is not None
    assert total_error(solution.chosen) <= 1
    assert total(solution.chosen) <= total(by_greed) * 1.001
    assert total(by_greed) <= 1.1 * total(solution.chosen)


def test_nothing_is_accounted_before_a_program_was_too_far_off() -> None:
    one = Candidate(product(), (0,), (ENode("MatMul", (), (0, 1)),), BF16)
    model = ErrorModel(Tolerance(1e-2))
    assert model.part(one) == 0
    model.scale = 2.0
    assert model.part(one) == pytest.approx((2 * usual_error("bf16") / 1e-2) ** 2)
    model.measured[one.covered[0]] = 4e-3
    assert model.part(one) == pytest.approx(0.64)
    exact = Candidate(product(), (0,), one.covered, Implementation("library", "onednn.matmul"))
    assert model.part(exact) == 0


def test_a_derived_product_expects_the_error_of_its_derivation() -> None:
    """A derivation that amplifies float32's rounding amplifies that of bf16 as much."""
    node = ENode("MatMul", (), (0, 1), rules=("winograd",))
    model = ErrorModel(Tolerance(1e-2), derived=lambda: {"winograd": 1e-5})
    model.look_up()
    assert model.part(Candidate(product(), (0,), (node,), BF16)) > 1
    model.scale = 1.0
    assert model.part(Candidate(product(), (0,), (ENode("MatMul", (), (0, 1)),), BF16)) < 0.2


def test_extraction_of_an_egraph_respects_the_accepted_error() -> None:
    b = Model()
    y = b.input(8, 16)
    for _ in range(4):
        y = apply("MatMul", y, b.weight(16, 16))
    frozen = saturate(b.graph(y), (), Limits()).frozen
    target = lowering().target
    offered = candidates(frozen, Target(target.kind, target.architecture, target.features, precisions=("bf16",)), fused=False)
    priced = {
        number: tuple(
            replace(one, cost_us=1.0, error=0.4) if one.implementation.precision == "bf16" else replace(one, cost_us=2.0)
            for one in options
            if one.implementation.is_library
        )
        for number, options in offered.items()
    }
    for selection in extract(frozen, priced, 3, 2.0):
        rounding = sum("@" in one.implementation.text for one in selection.chosen.values())
        assert rounding <= 2
    best = extract(frozen, priced, 1, 2.0)[0]
    assert sum("@" in one.implementation.text for one in best.chosen.values()) == 2


def test_where_time_is_short_a_program_that_does_not_round_is_found_too() -> None:
    b = Model()
    frozen = saturate(b.graph(apply("MatMul", b.input(8, 16), b.weight(16, 16))), (), Limits()).frozen

    def chooser(precisions: tuple[str, ...]) -> Chooser:
        target = replace(lowering().target, precisions=precisions)
        model = CostModel(Database.in_memory(), "d", DeviceSpeed(), target=target)
        for options in candidates(frozen, target, fused=False).values():
            for one in options:
                samples_us = (1.0 if one.implementation.precision != "float32" else 5.0,)
                model.database.put(Record("d", *key_of(one), "ok", samples_us, generator=model.code_digest(one)))
        budget = Budget(Progress(-1, 0.001))
        slow = {(True, False): 1e9, (False, True): 1e9}
        return Chooser(frozen, candidates(frozen, target, fused=False), model, budget, 1.0, 0, longest=slow)

    def precisions(selections: tuple[Selection, ...]) -> list[set[str]]:
        return [{one.implementation.precision for one in selection.chosen.values()} for selection in selections]

    assert precisions(chooser(()).choose_in_time(4, is_timed=True)) == [{"float32"}]
    assert precisions(chooser(("bf16",)).choose_in_time(4, is_timed=True)) == [{"bf16"}, {"float32"}]
