"""Test the prior: the features of a kernel, what it learns, and that it is used until a kernel is measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.prior import Sample, learnt, main, power_of
from egraph.tensor import Candidate, Implementation, Node
from egraph.tensor.ops import apply
from lower.cost.model import CostModel
from lower.cost.prior import IGNORANT, Prior, described, shipped
from lower.roofline import DeviceSpeed, work
from runtime.profile import Database, Record
from tests.support.fragments import leaf
from tests.support.implementations import GENERATED


def _tanh(width: int) -> Node:
    return apply("Tanh", leaf(0, 8, width))


def _sample(place: str, number: int, shift: float) -> Sample:
    features = described(_tanh(1 << number), "tvm", work(_tanh(1 << number)))
    return Sample(place, features, 0.5 * features["bytes"] + shift)


def test_what_is_learnt_does_not_depend_on_how_fast_a_place_was() -> None:
    data = [_sample(place, number, shift) for place, shift in (("slow", 3.0), ("fast", 0.0)) for number in range(4, 24)]
    prior = learnt(data)
    near, far = (power_of(prior, _sample("", number, 0.0)) for number in (8, 20))
    assert far - near == pytest.approx(6.0, abs=0.3)
    assert not any("slow" in name or "fast" in name for name in prior.weights)


def test_an_estimate_follows_the_prior_until_the_kernel_is_measured() -> None:
    database, one = Database.in_memory(), Candidate(_tanh(4096), (0,), (), GENERATED)
    plain = CostModel(database, "here", DeviceSpeed())
    model = CostModel(database, "here", DeviceSpeed(), prior=Prior({"one": 3.0}))
    assert plain.prior is IGNORANT
    assert model.cost_us(one) == pytest.approx(8 * model.policy.optimism * plain.cost_us(one))
    model.file(Record("here", *model.key(one), "ok", (7.0,)))
    assert model.cost_us(one) == 7.0


def test_relatives_are_estimated_by_the_latest_time() -> None:
    """A kernel with another operator over the same product is estimated at its time, also once the product is timed again."""
    product = apply("MatMul", leaf(0, 64, 512), leaf(1, 512, 64, constant=True))
    library = Implementation.parse("onednn.matmul", GENERATED.target)
    measured, relative = (Candidate(fragment, (0,), (), library) for fragment in (product, apply("Relu", product)))
    model = CostModel(Database.in_memory(), "here", DeviceSpeed())
    for time_us in (900.0, 300.0):
        model.file(Record("here", *model.key(measured), "ok", (time_us,)))
        assert model.cost_us(measured) == time_us
        assert model.estimate_us(relative) == pytest.approx(time_us, rel=0.1)


def test_of_libraries_that_it_was_not_learnt_on_a_prior_says_nothing() -> None:
    node, prior = _tanh(4096), Prior({"one": 3.0, "onednn.matmul one": 1.0})
    expected = {"onednn.matmul": 16.0, "onednn.pooling": 8.0, "tvm": 8.0, "new.matmul": 1.0, "new.matmul@bf16": 1.0}
    assert {text: prior.factor(node, text, work(node)) for text in expected} == expected


def test_a_prior_never_promises_more_than_the_roofline() -> None:
    database, one = Database.in_memory(), Candidate(_tanh(4096), (0,), (), GENERATED)
    roofline = CostModel(database, "here", DeviceSpeed()).estimate_us(one)
    assert CostModel(database, "here", DeviceSpeed(), prior=Prior({"one": -3.0})).estimate_us(one) == roofline


def test_the_one_that_ships_knows_that_grouped_convolutions_are_slow_in_a_library() -> None:
    def factor(group: int) -> float:
        operands = leaf(0, 1, 64, 28, 28), leaf(1, 64, 64 // group, 3, 3, constant=True)
        node = apply("Conv", *operands, group=group, strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1), layout="NCHW")
        return shipped("cpu").factor(node, Implementation.parse("onednn.convolution").text, work(node))

    assert factor(64) > 2 * factor(1)
    assert shipped("reference") is IGNORANT


def test_the_command_learns_from_a_database(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    database = Database.open(tmp_path / "p.sqlite")
    assert main([str(tmp_path / "p.sqlite")]) == 2
    for number in range(4, 16):
        fragment = f"Tanh(%0:float32[8,{1 << number}])"
        database.put(Record("cpu", fragment, "tvm", "ok", (2.0**number,)))
    assert main([str(tmp_path / "p.sqlite"), "-o", str(tmp_path / "prior.json")]) == 0
    assert "12 kernels" in capsys.readouterr().out
    assert json.loads((tmp_path / "prior.json").read_text())["weights"]["tvm bytes"] > 0
