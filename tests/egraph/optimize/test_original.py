"""The model as it was given: what belongs to it, and that a copy of it is one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from egraph.errors import ModelError
from egraph.onnx import importer
from egraph.optimize.artefact import export, save_unchanged
from egraph.optimize.check_noise import open_onnxruntime
from egraph.optimize.original import at_sizes, copy_model, digest, external_files, is_copy
from runtime import Session


def write_model(path: Path, *, external: str = "") -> Path:
    """Write ``x @ w``; the weight lies in the file ``external`` where that is named."""
    array = np.arange(12, dtype=np.float32).reshape(4, 3)
    weight = numpy_helper.from_array(array, "w")
    if external:
        (path.parent / external).write_bytes(array.tobytes())
        weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=(4, 3), data_location=TensorProto.EXTERNAL)
        weight.external_data.append(onnx.StringStringEntryProto(key="location", value=external))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, size]) for name, size in (("x", 4), ("y", 3))]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "product", ends[:1], ends[1:], [weight])
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString())
    return path


def test_files_beside_the_model_are_named_and_belong_to_its_identity(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m.onnx", external="weights.bin")
    assert external_files(model) == ("weights.bin",)
    before = digest(model)
    (tmp_path / "weights.bin").write_bytes(bytes(64))
    assert digest(model) != before
    (tmp_path / "inner").mkdir()
    with pytest.raises(ModelError, match="outside its folder"):
        external_files(write_model(tmp_path / "inner" / "m.onnx", external="../weights.bin"))


def test_a_model_that_names_no_file_has_none(tmp_path: Path) -> None:
    assert external_files(write_model(tmp_path / "m.onnx")) == ()
    (tmp_path / "empty.onnx").write_bytes(b"")
    with pytest.raises(ModelError, match="no graph"):
        external_files(tmp_path / "empty.onnx")


@pytest.mark.parametrize("external", ["", "weights.bin"])
def test_a_kept_model_is_copied_and_needs_no_comparison(tmp_path: Path, external: str) -> None:
    model = write_model(tmp_path / "m.onnx", external=external)
    assert export(None, model, tmp_path / "out" / "m.opt.onnx", 1) is None
    assert is_copy(model, tmp_path / "out" / "m.opt.onnx")
    save_unchanged(importer.load(model).graph, model, tmp_path / "out" / "m.einsat")
    with Session(tmp_path / "out" / "m.einsat", threads=1) as session:
        np.testing.assert_array_equal(session.run(None, {"x": np.ones((2, 4), np.float32)})[0], [[18, 22, 26]] * 2)


@pytest.mark.parametrize("damaged", ["m.onnx", "weights.bin"])
def test_a_copy_that_differs_in_a_byte_is_none(tmp_path: Path, damaged: str) -> None:
    model = write_model(tmp_path / "m.onnx", external="weights.bin")
    copy_model(model, tmp_path / "out" / "m.onnx")
    content = bytearray((tmp_path / "out" / damaged).read_bytes())
    content[-1] ^= 1
    (tmp_path / "out" / damaged).write_bytes(content)
    assert not is_copy(model, tmp_path / "out" / "m.onnx")


@pytest.mark.parametrize("external", ["", "weights.bin"])
def test_at_other_sizes_the_original_is_a_copy_that_fixes_them(tmp_path: Path, external: str) -> None:
    model = write_model(tmp_path / "m.onnx", external=external)
    for same in ({}, {"x": (2, 4)}):
        with at_sizes(model, same) as path:
            assert path == model
    with at_sizes(model, {"x": (5, 4)}) as path:
        assert path.name == "m.onnx" and external_files(path) == external_files(model)
        result = open_onnxruntime(path, 1).run(None, {"x": np.ones((5, 4), np.float32)})[0]
    np.testing.assert_array_equal(result, [[18, 22, 26]] * 5)
    assert not path.exists() and not (external and not (tmp_path / external).exists())
