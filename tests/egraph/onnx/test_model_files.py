"""Invalid models and files that hold no model are refused with the reason; weights in separate files are read or refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from egraph.errors import ModelError
from egraph.onnx.importer import load
from tests.egraph.onnx.test_importer import model_of


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("{ [one] a = Add(x, b) [two] b = Neg(a) y = Relu(b) }", "cycle(.|\n)*(one -> two -> one|two -> one -> two)"),
        ("{ y = Add(x, nowhere) }", "'nowhere' is used but nothing defines it(.|\n)*Add_0"),
        ("{ [one] a = Relu(x) [two] a = Neg(x) y = Add(a, a) }", "'a' is defined twice(.|\n)*two"),
        ("{ a = Relu(x) }", "output 'y' is not computed"),
        ("<float[3,5] w = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15}> { [bad] y = MatMul(x, w) }", "ill-typed(.|\n)*'bad'"),
        ("{ [bad] y = Add(x) }", "ill-typed(.|\n)*'bad'"),
        ("{ [bad] y = NoSuchOperator(x) }", "ill-typed(.|\n)*'bad'"),
        ("{ [bad] y = Cast<to = 1000>(x) }", "no element type 1000"),
        ("{ [bad] y = DepthToSpace(x) }", "'bad'"),
        ("{ [bad] y = DepthToSpace<blocksize = 0>(x) }", "'bad'"),
        ("{ [bad] y = Attention(x, , x) }", "operand 1 (.|\n)*is missing(.|\n)*'bad'"),
        ("{ [bad] y = RotaryEmbedding(x, x, ) }", "operand 2 (.|\n)*is missing(.|\n)*'bad'"),
        ("{ [bad] y = Loop(, , x) }", "'bad'"),
        ("{ [bad] y = Scan(x) }", "'bad'"),
    ],
)
def test_wrong_graphs_are_refused_by_name(body: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        load(model_of(f"(float[2] x) => (float[2] y) {body}", 23))


def cut(path: Path) -> None:
    data = model_of("(float[2] x) => (float[2] y) { y = Relu(x) }").SerializeToString()
    path.write_bytes(data[:-7])


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.mkdir(), "is a folder"),
        (lambda path: path.write_bytes(b"this is not a model"), "not an ONNX model"),
        (lambda path: path.write_bytes(b""), "not an ONNX model"),
        (cut, "truncated"),
    ],
)
def test_wrong_files_are_refused(tmp_path: Path, write: Callable[[Path], object], message: str) -> None:
    write(tmp_path / "model.onnx")
    with pytest.raises(ModelError, match=message):
        load(tmp_path / "model.onnx")


def test_a_graph_without_outputs_and_a_future_opset_are_refused() -> None:
    with pytest.raises(ModelError, match="empty"):
        load(helper.make_model(helper.make_graph([], "g", [], [])))
    with pytest.raises(ModelError, match="newer than the onnx package knows"):
        load(model_of("(float[2] x) => (float[2] y) { y = Relu(x) }", 999))


def external(folder: Path, location: str, *, length: int = 16) -> Path:
    """Write a model whose weight is stored in ``location``."""
    model = model_of("(float[4] x) => (float[4] y) { y = Add(x, w) }")
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", "8"), ("length", str(length))):
        weight.external_data.add(key=key, value=value)
    model.graph.initializer.append(weight)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def test_external_data_is_mapped(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(b"12345678" + np.arange(4, dtype=np.float32).tobytes())
    (data,) = load(external(tmp_path, "weights.bin")).graph.tensors.values()
    assert isinstance(data, np.memmap)
    assert data.tolist() == [0, 1, 2, 3]


def test_external_data_outside_the_folder_is_refused(tmp_path: Path) -> None:
    outside, folder = tmp_path / "secret.bin", tmp_path / "model"
    outside.write_bytes(b"\0" * 64)
    folder.mkdir()
    (folder / "link.bin").symlink_to(outside)
    for location in ("../secret.bin", str(outside), "link.bin", ""):
        with pytest.raises(ModelError, match="outside the model's folder"):
            load(external(folder, location))


def test_external_data_that_is_missing_or_short_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        load(external(tmp_path, "weights.bin"))
    (tmp_path / "weights.bin").write_bytes(b"\0" * 20)
    with pytest.raises(ModelError, match="does not fit"):
        load(external(tmp_path, "weights.bin"))
    with pytest.raises(ModelError, match="does not fit"):
        load(external(tmp_path, "weights.bin", length=8))
