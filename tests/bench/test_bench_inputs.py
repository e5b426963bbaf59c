"""The benchmark's inputs depend only on a seed: masks of ragged rows, and pictures in which trained models find something."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from bench.inputs import feeds_for, ragged_mask
from bench.models import MODELS, BenchModel
from bench.pictures import Picture, drawn, line, page, photograph, turned_line

DRAWN = tuple(entry for entry in MODELS.values() if entry.draw)


def opened(entry: BenchModel) -> tuple[onnx.ModelProto, Any]:
    """Return a model and its session in onnxruntime; skip the test if the package that provides the model is not installed."""
    import onnxruntime

    try:
        model = entry.make(1)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return model, onnxruntime.InferenceSession(model.SerializeToString(), options)


def lengths(mask: np.ndarray) -> list[int]:
    """Return how many ones each row begins with; only zeros may follow."""
    counts = mask.sum(-1)
    assert (mask == (np.arange(mask.shape[-1]) < counts[..., None])).all()
    return [int(count) for count in np.ravel(counts)]


def test_masks_are_ones_then_zeros_of_lengths_of_their_own() -> None:
    found = lengths(ragged_mask((200, 16), np.random.default_rng(0)))
    assert min(found) == 1 and max(found) == 16 and len(set(found)) == 16
    alone = [lengths(ragged_mask((1, 9), np.random.default_rng(seed)))[0] for seed in range(100)]
    assert set(alone) == {5, 6, 7, 8, 9}
    assert lengths(ragged_mask((3, 1), np.random.default_rng(0))) == [1, 1, 1]


@pytest.mark.parametrize(("element", "dtype"), [(TensorProto.INT64, np.int64), (TensorProto.INT32, np.int32), (TensorProto.BOOL, np.bool_)])
def test_masks_have_the_type_that_the_model_asks_for(element: int, dtype: type) -> None:
    types = {"attention_mask": element, "ids": TensorProto.INT64}
    ports = [helper.make_tensor_value_info(name, type, [4, 32]) for name, type in types.items()]
    model = helper.make_model(helper.make_graph([], "masked", ports, []))
    feeds = feeds_for(model, {}, seed=1)
    assert feeds["attention_mask"].dtype == dtype and len(set(lengths(feeds["attention_mask"]))) > 1
    assert feeds["ids"].max() > 500 and (feeds["attention_mask"] == feeds_for(model, {}, seed=1)["attention_mask"]).all()


@pytest.mark.parametrize("picture", [page, line, turned_line, photograph])
def test_pictures_are_drawn_from_the_seed_and_normalised(picture: Picture) -> None:
    pytest.importorskip("PIL")
    if picture is photograph and find_spec("sklearn") is None:
        pytest.skip("scikit-learn, which brings photographs, is not installed")
    bytes_of = drawn(picture, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    draw = drawn(picture, (0.5, 0.25, 0.0), (0.5, 0.5, 2.0))
    shape = (2, 3, 48, 160)
    plain, again, other = (bytes_of(shape, np.random.default_rng(seed)) for seed in (3, 3, 4))
    assert plain.shape == shape and plain.dtype == np.float32 and 0 <= plain.min() < 0.3 < 0.7 < plain.max() <= 1
    assert (plain == again).all() and (plain[0] != plain[1]).mean() > 0.5 < (plain != other).mean()
    normal = draw(shape, np.random.default_rng(3))
    for channel, (mean, deviation) in enumerate([(0.5, 0.5), (0.25, 0.5), (0.0, 2.0)]):
        np.testing.assert_allclose(normal[:, channel], (plain[:, channel] - mean) / deviation, atol=1e-6)


@pytest.mark.parametrize("name", ["ppocr_det", "ppocr_rec", "ppocr_cls"])
def test_text_is_found_and_read(name: str) -> None:
    """Regression: on noise, the detector's largest probability was 4e-3, compared with which every rounding error is large."""
    pytest.importorskip("PIL")
    model, session = opened(MODELS[name])
    assert all(np.max(session.run(None, MODELS[name].feeds(model, seed))[0]) > 0.9 for seed in range(3))


def test_every_trained_model_of_images_reads_pictures() -> None:
    assert {entry.name for entry in DRAWN} == {"ppocr_det", "ppocr_rec", "ppocr_cls", "nudenet_320n"}
    assert all(entry.weights == "trained" for entry in DRAWN)
