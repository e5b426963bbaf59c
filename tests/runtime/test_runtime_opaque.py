"""Test steps that onnxruntime runs, between native steps and alone."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from egraph.optimize.estimated import open_session
from lower.plan_text import parse_plan
from runtime import Session
from runtime.errors import ExecutionError, InvalidArgument
from runtime.executable import Executable
from tests.support.plans import draw, model, save


def test_opaque_step_between_native_ones(tmp_path: Path) -> None:
    """Run relu by the library, CumSum by onnxruntime, and relu again."""
    nodes = [helper.make_node("Constant", [], ["axis"], value_int=0), helper.make_node("CumSum", ["a", "axis"], ["b"])]
    tensor = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [7]) for n in "ab"]
    made = parse_plan("""plan arena_bytes=56 {
      %0 = input 'x' : float32[7]
      %1 = arena : float32[7]
      %2 = arena : float32[7] offset=7
      %3 = output 'y' : float32[7]
      onednn 'first' (%0) -> (%1) {"primitive": "eltwise", "arguments": {"src": 0}, "algorithm": "relu"}
      onnxruntime 'cumsum' (%1) -> (%2) {"model": "opaque/cumsum.onnx", "input_names": ["a"], "output_names": ["b"]}
      onednn 'last' (%2) -> (%3) {"primitive": "eltwise", "arguments": {"src": 0}, "algorithm": "relu"}
      input 'x' : float32[7] = %0
      output 'y' : float32[7] = %3
    }""")
    folder = save(tmp_path / "m.einsat", made, {}, {"opaque/cumsum.onnx": model(nodes, tensor[:1], tensor[1:])})
    session, x = Session(folder, threads=1), draw(7)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], np.cumsum(np.maximum(x, 0)), rtol=1e-5)
    assert [name for name, _ in session.profile(2)] == ["first", "cumsum", "last"]
    assert len(session.run_native(2)) == 2


def test_threads_spin_during_an_opaque_step_and_not_after_it() -> None:
    """Without spinning, an LSTM takes twice as long. If threads spin after the run, the next kernel waits for a core."""
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [256, 256]) for n in "xy"]
    proto = model([helper.make_node("MatMul", ["x", "x"], ["y"])], infos[:1], infos[1:])
    made = parse_plan("""plan arena_bytes=262144 {
      %0 = input 'x' : float32[256,256]
      %1 = arena : float32[256,256]
      %2 = output 'y' : float32[256,256]
      onnxruntime 'square' (%0) -> (%1) {"model": "opaque/square.onnx", "input_names": ["x"], "output_names": ["y"]}
      onednn 'relu' (%1) -> (%2) {"primitive": "eltwise", "arguments": {"src": 0}, "algorithm": "relu"}
      input 'x' : float32[256,256] = %0
      output 'y' : float32[256,256] = %2
    }""")
    executable, feeds = Executable(made, {}, models=lambda name: proto, threads=2), {"x": draw(256, 256)}
    session = executable._opaque[0].session
    with pytest.raises(RuntimeError, match="allow_spinning"):
        session.get_session_options().get_session_config_entry("session.intra_op.allow_spinning")
    idle_seconds = []
    for _ in range(5):
        session.run(None, feeds)
        started = time.process_time()
        time.sleep(0.05)
        idle_seconds.append(time.process_time() - started)
    assert min(idle_seconds) < 0.003
    executable.close()


@pytest.mark.parametrize(("rows", "threads"), [(100, 1), (300, 2)])
def test_a_step_with_little_data_has_no_threads_of_its_own(rows: int, threads: int) -> None:
    """Waking threads takes longer than the step, and they occupy cores that the next kernel's threads need."""
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [rows, 320]) for name in "xy"]
    nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Atan", ["a"], ["y"])]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with open_session(proto, threads=2) as session:
        (opaque,) = session.executable._opaque.values()
        assert opaque.session.get_session_options().intra_op_num_threads == threads
        x = draw(rows, 320)
        np.testing.assert_allclose(session.run(None, {"x": x})[0], np.arctan(np.maximum(x, 0)), rtol=1e-6)


def test_a_whole_model_of_strings_and_dynamic_shapes(tmp_path: Path) -> None:
    """An unchanged model is one opaque step. Sizes and strings pass through it unchanged."""
    nodes = [helper.make_node("Identity", ["s"], ["t"]), helper.make_node("NonZero", ["x"], ["y"])]
    inputs = [
        helper.make_tensor_value_info("s", TensorProto.STRING, ["n"]),
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3]),
    ]
    outputs = [helper.make_tensor_value_info("t", TensorProto.STRING, ["n"]), helper.make_tensor_value_info("y", TensorProto.INT64, None)]
    made = parse_plan("""plan {
      %0 = host 's' : string[]
      %1 = host 'x' : float32[]
      %2 = host 't' : string[]
      %3 = host 'y' : int64[]
      onnxruntime 'all' (%0, %1) -> (%2, %3) {"model": "opaque/all.onnx", "input_names": ["s", "x"], "output_names": ["t", "y"]}
      input 's' : string[n] = %0
      input 'x' : float32[n,3] = %1
      output 't' : string[n] = %2
      output 'y' : int64[?] = %3
    }""")
    session = Session(save(tmp_path / "m.einsat", made, {}, {"opaque/all.onnx": model(nodes, inputs, outputs)}), threads=1)
    for n in (2, 5):
        words, x = np.array(["é", "b"] * n, dtype=object)[:n], np.round(draw(n, 3))
        t, y = session.run(None, {"s": words, "x": x})
        assert t.tolist() == words.tolist()
        np.testing.assert_array_equal(y, np.stack(np.nonzero(x)))
    assert session.run(["t"], {"s": np.array(["u", "v"]), "x": draw(2, 3)})[0].tolist() == ["u", "v"]
    with pytest.raises(InvalidArgument, match="index: 1 Got: 4 Expected: 3"):
        session.run(None, {"s": words, "x": draw(5, 4)})


class Foreign:
    """Array of another library."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def whole_model(tmp_path: Path, dtype: int = TensorProto.FLOAT) -> Session:
    """Return a session of a model that is kept unchanged, with two inputs and two outputs."""
    infos = [helper.make_tensor_value_info(n, dtype, [2, 3]) for n in "abyz"]
    nodes = [helper.make_node("Add", ["a", "b"], ["y"]), helper.make_node("Identity", ["a"], ["z"])]
    name = "float32" if dtype == TensorProto.FLOAT else "bfloat16"
    text = """plan {
      %0 = host 'a' : float32[]
      %1 = host 'b' : float32[]
      %2 = host 'y' : float32[]
      %3 = host 'z' : float32[]
      onnxruntime 'all' (%0, %1) -> (%2, %3) {"model": "opaque/all.onnx", "input_names": ["a", "b"], "output_names": ["y", "z"]}
      input 'a' : float32[2,3] = %0
      input 'b' : float32[2,3] = %1
      output 'y' : float32[2,3] = %2
      output 'z' : float32[2,3] = %3
    }"""
    made = parse_plan(text.replace("float32", name))
    nodes = [*nodes[1:], helper.make_node("Identity", ["b"], ["y"])] if name == "bfloat16" else nodes
    return Session(save(tmp_path / "m.einsat", made, {}, {"opaque/all.onnx": model(nodes, infos[:2], infos[2:])}), threads=1)


def test_a_model_kept_unchanged_goes_straight_to_onnxruntime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session, feeds = whole_model(tmp_path), {"a": draw(2, 3), "b": draw(2, 3)}
    with monkeypatch.context() as patch:
        patch.delattr(Executable, "run")
        y, z = session.run(None, feeds)
        np.testing.assert_array_equal(y, feeds["a"] + feeds["b"])
        np.testing.assert_array_equal(z, feeds["a"])
        assert not np.shares_memory(z, feeds["a"])
        np.testing.assert_array_equal(session.run(["z", "y"], feeds)[1], y)
        transposed = {name: value.T.copy().T for name, value in feeds.items()}
        np.testing.assert_array_equal(session.run([], transposed)[0], y)
        assert len(session.run_native(2)) == 2 and session.profile(2)[0][0] == "all"
    np.testing.assert_array_equal(session.run(["z"], {name: Foreign(value) for name, value in feeds.items()})[0], feeds["a"])
    out = np.empty((2, 3), np.float32)
    assert session.run(["y"], feeds, out={"y": out})[0] is out
    np.testing.assert_array_equal(out, y)
    with pytest.raises(InvalidArgument, match="Required inputs"):
        session.run(None, {"a": feeds["a"]})
    with pytest.raises(InvalidArgument, match="Unexpected input data type for a"):
        session.run(None, {"a": feeds["a"].astype(np.int64), "b": feeds["b"]})
    with pytest.raises(InvalidArgument, match="Invalid output name:q"):
        session.run(["q"], feeds)
    session.close()
    with pytest.raises(ExecutionError, match="closed"):
        session.run(None, feeds)


def test_a_model_of_types_that_numpy_lacks_is_still_passed_as_bits(tmp_path: Path) -> None:
    import ml_dtypes

    session = whole_model(tmp_path, TensorProto.BFLOAT16)
    feeds = {name: draw(2, 3).astype(ml_dtypes.bfloat16) for name in "ab"}
    y, z = session.run(None, feeds)
    assert y.dtype == z.dtype == feeds["a"].dtype
    assert (y == feeds["b"]).all() and (z == feeds["a"]).all()


def test_host_values_travel_between_opaque_steps() -> None:
    """A result of unknown size stays a Python object until a step or an output reads it."""
    first = model(
        [helper.make_node("NonZero", ["x"], ["i"])], [helper.make_tensor_value_info("x", TensorProto.FLOAT, [6])],
        [helper.make_tensor_value_info("i", TensorProto.INT64, None)],
    )  # fmt: skip
    second = model(
        [helper.make_node("Shape", ["i"], ["n"])], [helper.make_tensor_value_info("i", TensorProto.INT64, None)],
        [helper.make_tensor_value_info("n", TensorProto.INT64, [2])],
    )  # fmt: skip
    made = parse_plan("""plan {
      %0 = input 'x' : float32[6]
      %1 = host : int64[]
      %2 = output 'n' : int64[2]
      onnxruntime 'first' (%0) -> (%1) {"model": "opaque/first.onnx", "input_names": ["x"], "output_names": ["i"]}
      onnxruntime 'second' (%1) -> (%2) {"model": "opaque/second.onnx", "input_names": ["i"], "output_names": ["n"]}
      input 'x' : float32[6] = %0
      output 'n' : int64[2] = %2
      output 'i' : int64[?] = %1
      output 'j' : int64[?] = %1
    }""")
    models = {"opaque/first.onnx": first, "opaque/second.onnx": second}
    got = Executable(made, {}, models=models.__getitem__, threads=1).run({"x": np.array([0, 1, 2, 0, 3, 0], np.float32)})
    assert got["n"].tolist() == [1, 3] and got["i"].tolist() == got["j"].tolist() == [[1, 2, 4]]
    assert not np.shares_memory(got["i"], got["j"])


def test_bfloat16_passes_through_onnxruntime() -> None:
    import ml_dtypes

    infos = [helper.make_tensor_value_info(n, TensorProto.BFLOAT16, [3]) for n in "xy"]
    made = parse_plan("""plan {
      %0 = input 'x' : bfloat16[3]
      %1 = output 'y' : bfloat16[3]
      onnxruntime 'id' (%0) -> (%1) {"model": "opaque/id.onnx", "input_names": ["x"], "output_names": ["y"]}
      input 'x' : bfloat16[3] = %0
      output 'y' : bfloat16[3] = %1
    }""")
    proto = model([helper.make_node("Identity", ["x"], ["y"])], infos[:1], infos[1:])
    x = np.array([1, -2, 0.5], ml_dtypes.bfloat16)
    got = Executable(made, {}, models=lambda name: proto, threads=1).run({"x": x})["y"]
    assert got.dtype == x.dtype and got.tolist() == x.tolist()


def test_opaque_results_that_break_the_plan_are_refused() -> None:
    proto = model(
        [helper.make_node("NonZero", ["x"], ["y"])], [helper.make_tensor_value_info("x", TensorProto.FLOAT, [6])],
        [helper.make_tensor_value_info("y", TensorProto.INT64, None)],
    )  # fmt: skip
    made = parse_plan("""plan arena_bytes=48 {
      %0 = input 'x' : float32[6]
      %1 = arena : int64[1,6]
      %2 = output 'y' : int64[1,6]
      onnxruntime 'z' (%0) -> (%1) {"model": "opaque/z.onnx", "input_names": ["x"], "output_names": ["y"]}
      copy 'c' (%1) -> (%2) {}
      input 'x' : float32[6] = %0
      output 'y' : int64[1,6] = %2
    }""")
    executable = Executable(made, {}, models=lambda name: proto, threads=1)
    assert executable.run({"x": np.ones(6, np.float32)})["y"].tolist() == [[0, 1, 2, 3, 4, 5]]
    with pytest.raises(ExecutionError, match=r"int64\[1, 5\] where the plan has int64\[1, 6\]"):
        executable.run({"x": np.array([1, 1, 1, 0, 1, 1], np.float32)})
