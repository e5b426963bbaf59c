"""Artefacts travel without their random weights, which are drawn again; weights with structure are kept to the bit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from bench.drawn_weights import DRAWN, filled, hollow, leave_out, looks_random, opened, read_feeds, write_feeds
from egraph.onnx import importer
from egraph.optimize.estimated import compile_options, estimated_program
from lower.compile import compile_program
from lower.weights import write_weights
from runtime import Session
from runtime.artefact import WEIGHTS, Artefact
from runtime.errors import LibraryMissing

SIZE = 512


def model() -> onnx.ModelProto:
    """Return y = Relu(x w) + m: w is random, m is a mask of two values."""
    weights = (np.random.default_rng(1).standard_normal((SIZE, SIZE)) / 7 + 0.01).astype(np.float32)
    mask = np.where(np.tri(SIZE, dtype=bool), 0, -1e9).astype(np.float32)
    nodes = [
        onnx.helper.make_node("MatMul", ["x", "w"], ["t"]), onnx.helper.make_node("Relu", ["t"], ["r"]),
        onnx.helper.make_node("Add", ["r", "m"], ["y"]),
    ]  # fmt: skip
    ports = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, (SIZE, SIZE)) for name in "xy"]
    constants = [onnx.numpy_helper.from_array(weights, "w"), onnx.numpy_helper.from_array(mask, "m")]
    graph = onnx.helper.make_graph(nodes, "g", ports[:1], ports[1:], constants)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def artefact(tmp_path: Path) -> Path:
    target = "cuda:h100"
    compile_program(estimated_program(importer.load(model()).graph, device=target), tmp_path / "m.einsat", compile_options(1, target))
    return tmp_path / "m.einsat"


def test_random_weights_are_left_out_and_others_kept(artefact: Path) -> None:
    before = {name: array.copy() for name, array in Artefact.open(artefact).weights.items()}
    random = {name for name, array in before.items() if looks_random(array)}
    assert len(random) == 1 < len(before)
    leave_out(artefact)
    assert sum(path.stat().st_size for path in artefact.iterdir()) < sum(array.nbytes for array in before.values()) / 20
    after = opened(artefact).weights
    assert {name: array.shape for name, array in after.items()} == {name: array.shape for name, array in before.items()}
    for name, array in before.items():
        if name in random:
            assert not np.array_equal(after[name], array)
            assert abs(after[name].mean() - array.mean()) < 1e-3 and abs(after[name].std() / array.std() - 1) < 1e-2
        else:
            np.testing.assert_array_equal(after[name], array)
    x = np.random.default_rng(0).standard_normal((SIZE, SIZE), dtype=np.float32)
    (weights,), (mask,) = ([after[name] for name in after if (name in random) is drawn] for drawn in (True, False))
    with Session(opened(artefact), on="cuda:h100") as session:
        (result,) = session.run(None, {"x": x})
    expected = np.maximum(x.astype(np.float64) @ weights.reshape(SIZE, SIZE), 0) + mask.reshape(SIZE, SIZE)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)


def test_zeros_of_random_weights_stay_where_they_are(artefact: Path) -> None:
    """Weights padded by a transform hold a block of zeros, whose positions travel as one bit per element."""
    weights = {name: array.copy() for name, array in Artefact.open(artefact).weights.items()}
    name = next(name for name, array in weights.items() if looks_random(array))
    weights[name].reshape(-1)[: weights[name].size // 3] = 0
    write_weights(artefact / WEIGHTS, weights)
    leave_out(artefact)
    assert sum(path.stat().st_size for path in artefact.iterdir()) < weights[name].nbytes / 20
    after = opened(artefact).weights[name]
    np.testing.assert_array_equal(after == 0, weights[name] == 0)
    drawn, given = after[after != 0], weights[name][after != 0]
    assert abs(drawn.mean() - given.mean()) < 1e-3 and abs(drawn.std() / given.std() - 1) < 1e-2


def test_other_draws_are_refused(artefact: Path) -> None:
    """If numpy draws other numbers, the expected outputs would belong to other weights."""
    leave_out(artefact)
    described = json.loads((artefact / DRAWN).read_text())
    (artefact / DRAWN).write_text(json.dumps({**described, "seed": 1}))
    with pytest.raises(LibraryMissing, match="draws other weights"):
        opened(artefact)


def test_what_is_small_or_has_a_structure_is_kept() -> None:
    generator = np.random.default_rng(0)
    assert looks_random(generator.standard_normal((64, 64), dtype=np.float32))
    assert looks_random(generator.random((256, 256), dtype=np.float32) / 100)
    assert not looks_random(generator.standard_normal((8, 8), dtype=np.float32))
    assert not looks_random(np.tile(generator.standard_normal((64, 1), dtype=np.float32), (1, 64)))
    assert not looks_random(generator.integers(0, 9, (64, 64)).astype(np.float32))
    assert not looks_random(generator.integers(0, 9, (64, 64)))
    assert not looks_random(np.where(generator.random((64, 64)) < 0.5, np.float32(np.inf), np.float32(0)))


def test_a_hollow_model_is_filled_with_weights_of_the_same_sizes() -> None:
    """Random weights are removed from the file; weights with structure are kept, and drawn ones have the scale of their fan-in."""
    random = np.random.default_rng(0).standard_normal((64, 128), dtype=np.float32)
    table = np.arange(64 * 128, dtype=np.float32).reshape(64, 128) // 8
    tensors = [numpy_helper.from_array(random, "random"), numpy_helper.from_array(table, "table")]
    model = onnx.helper.make_model(onnx.helper.make_graph([], "weights", [], [], tensors))
    emptied = hollow(model)
    assert len(emptied.SerializeToString()) < len(model.SerializeToString()) - random.nbytes // 2
    made = {each.name: numpy_helper.to_array(each) for each in filled(emptied).graph.initializer}
    np.testing.assert_array_equal(made["table"], table)
    assert made["random"].shape == (64, 128) and 0.9 < made["random"].std() * np.sqrt(128) < 1.1


def test_random_inputs_are_drawn_where_they_are_read(tmp_path: Path) -> None:
    """The file stays small because random inputs are drawn when read; token ids and masks are kept to the bit."""
    noise = np.random.default_rng(3).standard_normal((16, 3, 224, 224), dtype=np.float32)
    ids, mask = np.arange(9000), np.tri(200, dtype=np.float32)
    feeds = write_feeds(tmp_path / "feeds.npz", {"x": noise, "ids": ids, "mask": mask})
    assert (tmp_path / "feeds.npz").stat().st_size < 50_000
    assert feeds["x"].shape == noise.shape and feeds["x"].dtype == np.float32 and abs(feeds["x"].std() - 1) < 0.01
    np.testing.assert_array_equal(feeds["ids"], ids)
    np.testing.assert_array_equal(feeds["mask"], mask)
    again = read_feeds(tmp_path / "feeds.npz")
    assert again.keys() == feeds.keys() == {"x", "ids", "mask"}
    np.testing.assert_array_equal(again["x"], feeds["x"])
