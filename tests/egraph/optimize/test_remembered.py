"""Data of a finished search in the profile database, and the shortcuts of extraction and of candidates."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from egraph.engine.analyses import DIRECT, value_of_array, value_of_term
from egraph.engine.saturate import Limits, saturate
from egraph.extract import extract
from egraph.optimize.choice import read_selections
from egraph.optimize.options import Options
from egraph.optimize.outcome import Refused
from egraph.optimize.records import Earlier, read_search, search_key, write_search
from egraph.rules import RULES
from egraph.tensor import FrozenEGraph, Graph, Selection, TensorType, attributes, make
from egraph.tensor.ops import apply
from egraph.tensor.ops.reference import evaluate
from egraph.tensor.text import format_selection
from egraph.tolerance import Tolerance
from lower.candidates import candidates
from lower.cost.model import CostModel, without_twins
from lower.eoperator.request import MAXIMUM_TERMS, supports, supports_by_parts
from lower.roofline import DeviceSpeed
from runtime.profile import Database, Record, SearchRow
from tests.support.fragments import leaf


def _graph(activation: str = "Relu") -> Graph:
    x = make("Input", (), attributes(name="x"), TensorType("float32", (4, 8)))
    y = apply("Softmax", apply("Add", apply(activation, x), apply("Exp", x)), axis=1)
    return Graph("small", (x,), (("y", y),), {})


def _searched() -> tuple[CostModel, FrozenEGraph, tuple[Selection, ...]]:
    frozen = saturate(_graph(), RULES, Limits(e_nodes=300, iterations=3)).frozen
    model = CostModel(Database.in_memory(), "here", DeviceSpeed())
    laid = without_twins(model, candidates(frozen))
    return model, frozen, extract(frozen, model.price(laid), 2, 1.0, 0)


def test_a_choice_is_read_back() -> None:
    _, frozen, selections = _searched()
    text = "".join(map(format_selection, selections))
    again = read_selections(text, frozen, CostModel(Database.in_memory(), "here", DeviceSpeed(), caution=9.0))
    for new, old in zip(again, selections, strict=True):
        assert list(new.chosen) == list(old.chosen)
        assert [(c.fragment, c.operands, c.implementation, c.cost_us, c.covered[0], set(c.covered)) for c in new.chosen.values()] == [
            (c.fragment, c.operands, c.implementation, c.cost_us, c.covered[0], set(c.covered)) for c in old.chosen.values()
        ]
        assert (new.method, new.optimal, new.cost_us) == (old.method, old.optimal, old.cost_us)


def test_what_does_not_fit_is_forgotten() -> None:
    model, frozen, selections = _searched()
    text = "".join(map(format_selection, selections))
    one = next(c for c in selections[0].chosen.values() if not c.implementation.is_view)
    other = saturate(_graph("Tanh"), RULES, Limits(e_nodes=300, iterations=3)).frozen
    assert read_selections(text, other, model) == ()
    assert read_selections("", frozen, model) == read_selections("[{}]", frozen, model) == read_selections(text[:-9], frozen, model) == ()
    assert len(read_selections(text, frozen, model)) == len(selections)
    model.file(Record("here", *model.key(one), "wrong", (), "differs"))
    assert read_selections(text, frozen, model) == ()


def test_a_search_is_filed_by_what_makes_it_another() -> None:
    options = Options(Path("m.onnx"), seed=1)
    key = search_key(_graph(), RULES, options)
    same = dataclasses.replace(options, budget_seconds=5.0, checks=7, tolerance=Tolerance(1e-2), output=Path("elsewhere"), frozen=True)
    assert search_key(_graph(), RULES, same) == key
    others = [
        dataclasses.replace(options, seed=2), dataclasses.replace(options, threads=2), dataclasses.replace(options, max_nodes=10),
        dataclasses.replace(options, finalists=1),
    ]  # fmt: skip
    assert len({key, search_key(_graph(), RULES[1:], options), *(search_key(_graph(), RULES, other) for other in others)}) == 6
    restated = [dataclasses.replace(RULES[0], text=f"{RULES[0].text}, restated"), *RULES[1:]]
    assert len({key, search_key(_graph(), restated, options), search_key(_graph(), RULES, options, ("derivations",))}) == 3


def test_a_filed_search_is_read_back_and_other_records_are_not() -> None:
    database = Database.in_memory()
    assert read_search(database, "here", "key") is None
    found = Earlier(18, 3, 60.0, "[]", (Refused("slow", "onednn.softmax", "Softmax(%0:float32[4])", "a reference"),))
    write_search(database, "here", "key", found)
    assert read_search(database, "here", "key") == found and read_search(database, "there", "key") is None
    assert "60 s budget, 3 of the chosen kernels unmeasured" in found.describe()
    database.put(SearchRow("here", "key", 18, 3, 60.0, "[]", (("slow", "onednn.softmax"),), ()))
    assert read_search(database, "here", "key") is None


FRAGMENTS = {
    "chain": apply("Tanh", apply("Add", apply("Relu", leaf(0, 4, 8)), leaf(1, 8))),
    "reduction of a transpose": apply("ReduceSum", apply("Transpose", apply("Exp", leaf(0, 4, 8)), perm=(1, 0)), axes=(0,)),
    "integers": apply("Relu", apply("Add", leaf(0, 4), leaf(1, 4))),
    "contraction of a view": apply("Reshape", apply("MatMul", leaf(0, 4, 8), leaf(1, 8, 2)), shape=(8,)),
    "computed indices": apply("Gather", leaf(0, 9, 3), apply("Reshape", leaf(1, 4, dtype="int64"), shape=(2, 2)), axis=0),
}


@pytest.mark.parametrize("name", FRAGMENTS)
def test_parts_decide_like_the_whole(name: str) -> None:
    fragment = FRAGMENTS[name]
    assert (supports(fragment) is None) == (supports_by_parts(fragment) is None)


def test_many_repetitions_are_looked_at_as_a_whole() -> None:
    fragment = leaf(0, 4)
    for _ in range(9):  # each step reads the one below twice: counted one by one there are too many terms, counted once there are few
        fragment = apply("Add", fragment, apply("Exp", fragment))
    assert MAXIMUM_TERMS < 3 * 2**9 - 2
    assert supports(fragment) is None
    assert supports_by_parts(fragment) is None
    for _ in range(9):
        fragment = apply("Add", fragment, apply("Exp", fragment))
    assert "more than" in str(supports_by_parts(fragment))


@pytest.mark.parametrize("op", DIRECT)
def test_direct_values_follow_the_meanings(op: str) -> None:
    generator = np.random.default_rng(0)
    arity = 1 if op in ("Reshape", "Transpose") else 2
    arrays = [generator.standard_normal(shape).astype(np.float32) for shape in ((3, 4, 5), (4, 1))][:arity]
    given = {"Reshape": attributes(shape=(6, 10)), "Transpose": attributes(perm=(2, 0, 1))}.get(op, ())
    leaves = [leaf(i, *array.shape) for i, array in enumerate(arrays)]
    root = apply(op, *leaves, attributes=given)
    values = [value_of_array(array) for array in arrays]
    known = [value for value in values if value is not None]
    assert len(known) == len(arrays)
    found = value_of_term(op, given, [leaf.type for leaf in leaves], values)
    assert found is not None
    np.testing.assert_array_equal(found.real, evaluate([root], dict(zip(leaves, [v.real for v in known], strict=True)))[0])
    np.testing.assert_array_equal(found.prime, evaluate([root], dict(zip(leaves, [v.prime for v in known], strict=True)), "prime")[0])
