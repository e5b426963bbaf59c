"""The skeleton of a model's file has everything but the numbers of large weights, for any writer; invalid models are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from egraph.errors import ModelError
from egraph.onnx.importer.skeleton import KEPT_BYTES, skeleton

LARGE = KEPT_BYTES  # elements of at least a byte each


def tensor(name: str, dtype: str, elements: int, *, raw: bool) -> TensorProto:
    array = np.arange(elements).astype(dtype)
    if raw:
        return numpy_helper.from_array(array, name)
    values = [b"text"] * elements if dtype == "object" else array.tolist()
    data_type = TensorProto.STRING if dtype == "object" else helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor(name, data_type, [elements], values)


def without_numbers(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the expected skeleton of a model, made with protobuf's own fields."""
    bare = onnx.ModelProto.FromString(model.SerializeToString())
    for each in bare.graph.initializer:
        for name in ("raw_data", "float_data", "double_data", "int32_data", "int64_data", "uint64_data"):
            only = TensorProto()
            value = getattr(each, name)
            if name == "raw_data":
                is_large = len(value) > KEPT_BYTES
            else:
                getattr(only, name).extend(value)
                is_large = only.ByteSize() > KEPT_BYTES + 3  # the tag takes one byte, the length two
            if is_large:
                each.ClearField(name)
    return bare


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["float32", "float64", "int32", "int64", "uint64", "float16", "object"]),
                       st.sampled_from([0, 1, 7, LARGE, 3 * LARGE]), st.booleans()), max_size=5),
    st.booleans(), st.text(max_size=5),
)  # fmt: skip
def test_it_is_the_model_without_the_numbers_of_its_large_weights(
    tmp_path_factory: pytest.TempPathFactory, weights: list[tuple[str, int, bool]], is_outside: bool, note: str
) -> None:
    tensors = [tensor(f"w{k}", dtype, count, raw=raw and dtype != "object") for k, (dtype, count, raw) in enumerate(weights)]
    if is_outside:
        away = TensorProto(name="away", data_type=TensorProto.FLOAT, dims=(4, 3), data_location=TensorProto.EXTERNAL)
        away.external_data.append(onnx.StringStringEntryProto(key="location", value="weights.bin"))
        tensors.append(away)
    inner = helper.make_graph([helper.make_node("Identity", ["x"], ["z"])], "inner", [], [], [tensor("v", "float32", LARGE, raw=True)])
    nodes = [helper.make_node("If", ["x"], ["y"], then_branch=inner, else_branch=inner), helper.make_node("Relu", ["y"], ["z"])]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2])], [], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8, doc_string=note)
    path = tmp_path_factory.mktemp("models") / "m.onnx"
    path.write_bytes(model.SerializeToString())
    bare = skeleton(path)
    expected = without_numbers(model)
    for each in (*bare.graph.initializer, *expected.graph.initializer):
        if each.data_type == TensorProto.STRING:
            each.ClearField("string_data")  # each text is a field of its own, and the skeleton keeps short ones
    assert bare == expected


def test_it_is_read_anew_where_the_file_was_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    for name in ("first", "and another"):
        onnx.save(helper.make_model(helper.make_graph([], name, [], [])), path)
        assert skeleton(path).graph.name == name


@pytest.mark.parametrize("content", [b"", b"\x00", b"not a model", b"\x3a\xff\xff\xff\xff\x0f", b"\x3a\x04\x2a\x10ab"])
def test_what_is_no_model_is_refused_as_always(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.onnx").write_bytes(content)
    with pytest.raises(ModelError):
        skeleton(tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="does not exist"):
        skeleton(tmp_path / "none.onnx")
    with pytest.raises(ModelError, match="folder"):
        skeleton(tmp_path)
