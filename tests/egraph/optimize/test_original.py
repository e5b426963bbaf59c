"""The model as it was given: its parts, and a copy of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from egraph.errors import ModelError
from egraph.onnx import importer
from egraph.optimize.arguments import parse, to_options
from egraph.optimize.artefact import export, save_unchanged
from egraph.optimize.check_noise import open_onnxruntime
from egraph.optimize.options import Options
from egraph.optimize.original import at_sizes, copy_model, digest, external_files, is_copy, with_constants
from egraph.tensor import walk
from runtime import Session
from tests.support.commands import command


def write_model(path: Path, *, external: str = "") -> Path:
    """Write ``x @ w``; the weight is stored in the file ``external`` if one is named."""
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


BRANCHES = """<ir_version: 8, opset_import: ["" : 17]> g (float[2,3] x, int64 rate, bool flag, float[N] scale) => (float[2,3] y)
<int64 high = {16000}, float[1] more = {3}> {
    is_high = Equal(rate, high)
    b = If (is_high) <then_branch = t () => (float[2,3] yes) { yes = Mul(x, more) }, else_branch = e () => (float[2,3] no) { no = Exp(x) }>
    c = If (flag) <then_branch = t2 () => (float[2,3] yes) { yes = Neg(b) }, else_branch = e2 () => (float[2,3] no) { no = Abs(b) }>
    y = Mul(c, scale)
}"""


def options_for(folder: Path, *flags: str) -> Options:
    model = onnx.parser.parse_model(BRANCHES)
    onnx.save(model, folder / "m.onnx")
    return to_options(parse([str(folder / "m.onnx"), *flags]))


@pytest.mark.parametrize("rate", [16000, 8000])
@pytest.mark.parametrize("flag", ["true", "0"])
def test_a_constant_is_no_input_and_decides_what_hangs_on_it(tmp_path: Path, rate: int, flag: str) -> None:
    flags = ["--constant", f"rate={rate}", "--constant", f"flag={flag}", "--constant", "scale=1,-2,0.5", "--shape", "scale:3"]
    options = options_for(tmp_path, *flags)
    hints = importer.load(options.model, shapes=options.shapes).hints
    choose = "--constant rate=16000 --constant flag=NUMBER"
    assert hints == (f"onnxruntime runs the branches that the model chooses by its inputs; to optimise one of them: {choose}",)
    x = np.random.default_rng(0).standard_normal((2, 3), np.float32)
    whole = {"x": x, "rate": np.array(rate), "flag": np.array(flag == "true"), "scale": np.array([1, -2, 0.5], np.float32)}
    with with_constants(options) as fixed:
        assert fixed.model.name == "m.onnx" and fixed.output == tmp_path and not fixed.shapes
        assert fixed.stored()["constants"] == {"flag": [flag], "rate": [str(rate)], "scale": ["1", "-2", "0.5"]}
        imported = importer.load(fixed.model)
        assert [node.string("name") for node in imported.graph.inputs] == ["x"] and not imported.hints
        assert not any(node.op == "Opaque" for node in walk(imported.graph.roots))
        results = [open_onnxruntime(model, 1).run(None, feeds)[0] for model, feeds in ((options.model, whole), (fixed.model, {"x": x}))]
    np.testing.assert_array_equal(*results)
    assert not fixed.model.exists()


@pytest.mark.parametrize(
    ("flags", "problem", "fix"),
    [
        (["rat=1"], "no input 'rat'", "x, rate, flag, scale"),
        (["rate=1.5"], "'1.5' is no int64", "rate=1"),
        ([f"rate={1 << 70}"], "is no int64", "rate=1"),
        (["flag=yes"], "'yes' is no bool", "flag=true"),
        (["x=1,2"], "6 elements, and 2 numbers", "one number for all"),
        (["scale=1"], "leaves open", "--shape scale:SIZES"),
        (["rate=1", "rate=2"], "twice, and not the same", "once"),
    ],
)
def test_what_no_input_can_be_is_refused(tmp_path: Path, flags: list[str], problem: str, fix: str) -> None:
    arguments = [argument for flag in flags for argument in ("--constant", flag)]
    with pytest.raises(ModelError, match=problem) as told, with_constants(options_for(tmp_path, *arguments)):
        pass
    assert told.value.where == "--constant" and fix in told.value.fix


def test_the_model_itself_is_not_replaced(tmp_path: Path) -> None:
    options = options_for(tmp_path, "--constant", "rate=1", "-o", str(tmp_path / "m.onnx"))
    before = options.model.read_bytes()
    with pytest.raises(ModelError, match="would replace the input"), with_constants(options):
        pass
    assert options.model.read_bytes() == before


def test_one_number_fills_an_input(tmp_path: Path) -> None:
    with with_constants(options_for(tmp_path, "--constant", "x=2.5")) as options:
        model = onnx.load(options.model)
    assert [value.name for value in model.graph.input] == ["rate", "flag", "scale"]
    np.testing.assert_array_equal(numpy_helper.to_array(model.graph.node[0].attribute[0].t), np.full((2, 3), 2.5, np.float32))


@pytest.mark.parametrize("sizes", ["scale:3", "scale:3/1"])
def test_the_command_line_makes_constants(tmp_path: Path, sizes: str) -> None:
    """Constants are made for one size and for several, through every kind of run."""
    options_for(tmp_path)
    constants = ["--constant", "rate=8000", "--constant", "flag=1"]
    done = command(tmp_path / "m.onnx", "-o", tmp_path / "out", "--threads", 1, "--budget", "20s", "--shape", sizes, *constants, "-q")
    assert done.returncode == 0, done.stderr
    x, scale = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3), np.array([1, -2, 0.5], np.float32)
    with Session(tmp_path / "out" / "m.einsat", threads=1) as session:
        assert [port.name for port in session.get_inputs()] == ["x", "scale"]
        np.testing.assert_allclose(session.run(None, {"x": x, "scale": scale})[0], -np.exp(x) * scale, rtol=1e-5)
    assert [value.name for value in onnx.load(tmp_path / "out" / "m.opt.onnx").graph.input] == ["x", "scale"]
    assert (tmp_path / "m.onnx").stat().st_size > 0 and not list(tmp_path.glob("*.partial"))
