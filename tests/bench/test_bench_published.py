"""The list of published models is known without their packages, and has inputs that the models accept."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from bench.inputs import feeds_for, parse_shapes
from bench.published import PUBLISHED, SOURCES
from bench.run import LISTS
from tests.bench.test_bench_inputs import opened


def test_every_model_has_a_name_of_its_own_and_a_source() -> None:
    names = [name for models in LISTS.values() for name in models]
    assert len(names) == len(set(names)) and set(SOURCES) == set(PUBLISHED)
    assert len(set(SOURCES.values())) == len(SOURCES), "a file is listed once"


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_model_runs_on_its_inputs(name: str) -> None:
    model, session = opened(PUBLISHED[name])
    assert all(np.isfinite(value).all() for value in session.run(None, PUBLISHED[name].feeds(model)))


def test_integers_lie_in_their_range_and_a_name_may_hold_colons() -> None:
    assert parse_shapes(["a:0:1,2", "b:7"]) == {"a:0": (1, 2), "b": (7,)}
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT32, [50]) for name in ("bytes", "ids")]
    inputs.append(helper.make_tensor_value_info("rate", TensorProto.INT64, []))
    model = helper.make_model(helper.make_graph([], "g", inputs, inputs[:1]))
    feeds = feeds_for(model, {}, integers={"bytes": (3, 6), "rate": (16_000, 16_001)})
    assert set(feeds["bytes"]) == {3, 4, 5} and feeds["bytes"].dtype == np.int32
    assert feeds["ids"].max() > 100, "others are token ids"
    assert feeds["rate"].shape == () and feeds["rate"] == 16_000 and feeds["rate"].dtype == np.int64
