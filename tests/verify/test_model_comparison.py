"""A comparison of models names the method for each part and the first tensor that differs; artefacts are compared with their sources."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from egraph.onnx import exporter, importer
from egraph.optimize.estimated import compile_options, estimated_program
from egraph.optimize.original import digest
from egraph.tensor.expr.functions import PRIME
from lower.compile import compile_program
from tests.egraph.optimize.test_original import write_model
from verify.model.__main__ import main
from verify.model.comparing import Comparison, Settings, compare_models, difference
from verify.model.parts import residues
from verify.model.sides import read_side

Nodes = Sequence[onnx.NodeProto]
GENERATOR = np.random.default_rng(3)
WEIGHTS = {"u": GENERATOR.standard_normal((6, 7)), "v": GENERATOR.standard_normal((7, 4)), "s": np.full((1,), 3.0)}


def node(op: str, inputs: str, output: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), [output], name=f"{op} {output}", **attributes)


def write(path: Path, nodes: Nodes, weights: dict[str, np.ndarray] | None = None, x: str = "x", y: str = "y") -> Path:
    """Write a model from x[5,6] to y[5,4]."""
    arrays = {name: value.astype(np.float32) for name, value in {**WEIGHTS, **(weights or {})}.items()}
    used = {name for operator in nodes for name in operator.input}
    constants = [numpy_helper.from_array(value, name) for name, value in arrays.items() if name in used]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in ((x, [5, 6]), (y, [5, 4]))]
    graph = helper.make_graph(list(nodes), "g", ports[:1], ports[1:], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


LAYERS = (node("MatMul", "x u", "a"), node("Relu", "a", "b"), node("MatMul", "b v", "y"))


def methods(comparison: Comparison) -> dict[str, str]:
    return {part.tensor: part.method for part in comparison.parts}


def compared(folder: Path, first: Nodes, second: Nodes, weights: dict[str, np.ndarray] | None = None) -> Comparison:
    return compare_models(write(folder / "a.onnx", first), write(folder / "b.onnx", second, weights))


def test_the_same_operators_are_the_same_by_structure(tmp_path: Path) -> None:
    comparison = compared(tmp_path, LAYERS, LAYERS)
    assert comparison.equal and set(methods(comparison).values()) == {"structure"} and not comparison.first_differing


def test_the_first_differing_tensor_is_found_and_what_follows_is_told_apart(tmp_path: Path) -> None:
    changed = (LAYERS[0], node("Tanh", "a", "b"), LAYERS[2])
    comparison = compared(tmp_path, LAYERS, changed)
    assert not comparison.equal and comparison.first_differing == "b"
    assert methods(comparison) == {"a": "structure", "b": "differs", "y": "follows"}


def test_a_changed_weight_differs(tmp_path: Path) -> None:
    comparison = compared(tmp_path, LAYERS, LAYERS, {"v": WEIGHTS["v"] * 1.01})
    assert not comparison.equal and comparison.first_differing == "y"


def test_a_rearranged_part_is_proved(tmp_path: Path) -> None:
    """x u + x u = x (u + u) and relu(a) + a = a + relu(a) are proved; the rest of the models is equal by structure."""
    last = node("MatMul", "b v", "y")
    first = (node("MatMul", "x u", "p"), node("Add", "p p", "a"), node("Relu", "a", "r"), node("Add", "r a", "b"))
    second = (node("Add", "u u", "q"), node("MatMul", "x q", "a"), node("Relu", "a", "r"), node("Add", "a r", "b"))
    comparison = compared(tmp_path, (*first, last), (*second, last))
    assert comparison.equal and methods(comparison)["y"] == "structure"
    assert {methods(comparison)["a"], methods(comparison)["b"]} <= {"proof", "exact", "float64"}
    assert methods(comparison)["b"] == "proof"


def test_numbers_that_meet_are_equal_exactly(tmp_path: Path) -> None:
    """(x * 3) * 3 and x * 9 have different constants, so no proof over free constants can hold; residues show equality."""
    first = (node("MatMul", "x u", "a"), node("Mul", "a s", "p"), node("Mul", "p s", "b"), node("MatMul", "b v", "y"))
    second = (node("MatMul", "x u", "a"), node("Mul", "a t", "b"), node("MatMul", "b v", "y"))
    comparison = compared(tmp_path, first, second, {"t": np.full((1,), 9.0)})
    assert comparison.equal and methods(comparison)["b"] == "exact"


def test_rounded_constants_are_equal_to_rounding(tmp_path: Path) -> None:
    first = (node("MatMul", "x u", "a"), node("Mul", "a s", "b"), node("MatMul", "b v", "y"))
    weights = {"s": np.full((1,), 1 / 3), "w": WEIGHTS["u"].astype(np.float32) * np.float32(1 / 3)}
    second = (node("MatMul", "x w", "b"), node("MatMul", "b v", "y"))
    comparison = compare_models(write(tmp_path / "a.onnx", first, weights), write(tmp_path / "b.onnx", second, weights))
    assert comparison.equal and methods(comparison)["b"] == "float64"


def test_opaque_operators_are_left_to_onnxruntime(tmp_path: Path) -> None:
    first = (node("MatMul", "x u", "a"), node("Atan", "a", "b"), node("MatMul", "b v", "y"))
    second = (node("MatMul", "x u", "a"), node("Relu", "a", "p"), node("Neg", "a", "n"), node("Relu", "n", "q"), node("Sub", "p q", "r"),
              node("Atan", "r", "b"), node("MatMul", "b v", "y"))  # fmt: skip
    paths = []
    for name, nodes in (("a.onnx", first), ("b.onnx", second)):
        paths.append(write(tmp_path / name, nodes))
    comparison = compare_models(paths[0], paths[1])
    assert comparison.equal and methods(comparison)["b"] == "float32"


def test_inputs_and_outputs_of_other_names_are_taken_by_position(tmp_path: Path) -> None:
    renamed = (node("MatMul", "z u", "a"), node("Relu", "a", "b"), node("MatMul", "b v", "out"))
    comparison = compare_models(write(tmp_path / "a.onnx", LAYERS), write(tmp_path / "b.onnx", renamed, x="z", y="out"))
    assert comparison.equal and methods(comparison) == {"a": "structure", "b": "structure"}


def test_an_artefact_compares_equal_to_its_model_and_not_to_another(tmp_path: Path) -> None:
    source = write(tmp_path / "m.onnx", LAYERS)
    program = estimated_program(importer.load(source).graph)
    exporter.save(program, tmp_path / "m.opt.onnx", rules={k.output: k.rules for k in program.kernels if k.rules})
    compile_program(program, tmp_path / "m.einsat", compile_options(1))
    assert read_side(tmp_path / "m.einsat", {}).artefact is not None
    comparison = compare_models(source, tmp_path / "m.einsat")
    assert comparison.equal and max(comparison.outputs.values()) < 1e-5
    another = write(tmp_path / "n.onnx", (LAYERS[0], node("Sigmoid", "a", "b"), LAYERS[2]))
    assert not compare_models(another, tmp_path / "m.einsat").equal
    shutil.rmtree(tmp_path / "m.einsat")
    compile_program(estimated_program(importer.load(another).graph), tmp_path / "m.einsat", compile_options(1))
    comparison = compare_models(source, tmp_path / "m.einsat")
    assert not comparison.equal and comparison.first_differing == "y", "the artefact's own kernels are what is compared"


def test_certificates_speak_for_the_model_that_an_artefact_was_made_from(tmp_path: Path) -> None:
    source, another = write(tmp_path / "m.onnx", LAYERS), write(tmp_path / "n.onnx", (LAYERS[0], node("Tanh", "a", "b"), LAYERS[2]))
    program = estimated_program(importer.load(source).graph)
    exporter.save(program, tmp_path / "m.opt.onnx")
    compile_program(program, tmp_path / "m.einsat", compile_options(1))
    assert compare_models(source, tmp_path / "m.einsat").chain is None, "a manifest that does not say what it was made from says nothing"
    manifest = json.loads((tmp_path / "m.einsat" / "manifest.json").read_text())
    used = [{"name": "rule_of_a_user", "verdict": "proved"}]
    manifest["run"] = {"model_digest": digest(source), "rules": used}
    (tmp_path / "m.einsat" / "manifest.json").write_text(json.dumps(manifest))
    for made in (tmp_path / "m.einsat", tmp_path / "m.opt.onnx"):
        comparison = compare_models(source, made)
        assert comparison.equal and comparison.chain is not None and comparison.chain.is_proved
        assert "certificates: made from this file; of 1 rules that made its nodes 1 are proved" in comparison.lines()
    stranger = compare_models(another, tmp_path / "m.einsat")
    assert not stranger.equal and stranger.chain is not None and not stranger.chain.is_proved
    manifest["run"]["unsafe_rules"] = ["one_that_joins_values (refuted)"]
    (tmp_path / "m.einsat" / "manifest.json").write_text(json.dumps(manifest))
    joined = compare_models(source, tmp_path / "m.einsat").chain
    assert joined is not None and not joined.is_proved and str(joined).endswith("in use without a proof: one_that_joins_values (refuted)")
    used[0]["verdict"] = "refuted"
    (tmp_path / "m.einsat" / "manifest.json").write_text(json.dumps(manifest))
    assert "not proved: rule_of_a_user (refuted)" in "\n".join(compare_models(source, tmp_path / "m.einsat").lines())


def test_exit_codes_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = write(tmp_path / "a.onnx", LAYERS)
    b = write(tmp_path / "b.onnx", (LAYERS[0], node("Tanh", "a", "b"), LAYERS[2]))
    assert main([str(a), str(a)]) == 0
    assert capsys.readouterr().out.endswith("equal\n")
    assert main([str(a), str(b), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["first_differing"] == "b" and report["covered"] == {"structure": 1, "follows": 1, "differs": 1}
    assert main([str(a), str(tmp_path / "missing.onnx")]) == 2
    assert "there is no such file" in capsys.readouterr().err


def an_output_more(model: onnx.ModelProto) -> None:
    model.graph.output.append(helper.make_tensor_value_info("b", TensorProto.FLOAT, [5, 7]))


def an_input_less(model: onnx.ModelProto) -> None:
    del model.graph.input[0]


@pytest.mark.parametrize("spoil", [an_output_more, an_input_less])
def test_models_of_two_interfaces_cannot_be_compared(spoil: Callable[[onnx.ModelProto], None], tmp_path: Path) -> None:
    a = write(tmp_path / "a.onnx", LAYERS)
    model = onnx.load(str(a))
    spoil(model)
    onnx.save(model, tmp_path / "b.onnx")
    assert main([str(a), str(tmp_path / "b.onnx")]) == 2


def test_floats_are_exact_residues() -> None:
    array = np.array([1.5, -0.75, 2.0**-40, 3.0e9, -1.0e-30])
    for value, residue in zip(array, residues(array), strict=True):
        numerator, denominator = float(value).as_integer_ratio()
        assert int(residue) == numerator * pow(denominator, -1, PRIME) % PRIME


def test_differences_of_kinds_are_infinite() -> None:
    ones = np.ones(3, np.float32)
    assert difference(ones, ones) == 0.0
    assert difference(ones, ones.astype(np.float64)) == difference(ones, np.ones(4, np.float32)) == float("inf")
    assert difference(ones, np.array([1, np.nan, 1], np.float32)) == float("inf")
    assert difference(np.zeros(3, np.float32), np.full(3, 1.0, np.float32)) > 1


def test_models_are_compared_at_other_sizes_than_they_fix(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m.onnx")
    assert compare_models(model, model, Settings(inputs=1, shapes={"x": (5, 4)})).equal
