"""The list of image networks of a zoo, known without timm; and models of files beside the lists."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import onnx
import pytest

import bench.run
from bench.inputs import parse_shapes
from bench.models import MODELS, of_file
from bench.run import LISTS, build_parser, run
from bench.unseen import UNSEEN
from bench.zoo import ZOO, built, network

HAS_TIMM = all(importlib.util.find_spec(name) for name in ("timm", "torch", "torchvision", "onnxscript"))


def test_the_list_names_other_networks_than_the_others_and_needs_no_torch() -> None:
    assert len(ZOO) >= 24 and not set(ZOO) & (set(MODELS) | set(UNSEEN)) and LISTS["zoo"] is ZOO
    code = "import sys, bench.run, bench.zoo; sys.exit('torch' in sys.modules or 'timm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    with pytest.raises(ValueError, match="at batch 1 alone"):
        ZOO["rexnet_100"].make(2)


def test_a_network_is_built_untrained_for_export_and_gets_a_picture_of_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test uses a stand-in for timm, which need not be installed."""
    timm = Mock()
    module = timm.create_model.return_value.eval.return_value
    module.default_cfg = {"input_size": (3, 288, 288)}
    monkeypatch.setitem(sys.modules, "timm", timm)
    monkeypatch.setattr("bench.zoo.pictures", lambda size: ("picture", size))
    assert built("maxvit_pico_rw_256") == (module, ("picture", 288))
    timm.create_model.assert_called_once_with("maxvit_pico_rw_256", pretrained=False, exportable=True)


@pytest.mark.skipif(not HAS_TIMM, reason="timm, torchvision, torch and onnxscript are not installed")
def test_a_network_of_the_zoo_is_exported() -> None:
    model = network("hardcorenas_a")
    onnx.checker.check_model(model)
    assert ZOO["hardcorenas_a"].feeds(model)["x"].shape == (1, 3, 224, 224)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Write a model with an open (symbolic) size."""
    ports = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", 3]) for name in "xy"]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "relu", ports[:1], ports[1:])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]), tmp_path / "mine.onnx")
    return tmp_path / "mine.onnx"


def test_a_model_of_a_file_has_the_sizes_that_it_is_given(file: Path) -> None:
    entry = of_file(str(file), ("x:5,3",))
    assert entry is not None and (entry.name, entry.weights) == ("mine", "given")
    assert entry.feeds(entry.make(1))["x"].shape == (5, 3) and np.isfinite(entry.feeds(entry.make(1))["x"]).all()
    assert of_file("resnet18") is None and of_file(str(file.with_name("other.onnx"))) is None
    assert dict(parse_shapes(entry.shapes)) == {"x": (5, 3)}


def test_files_are_timed_like_models_of_the_lists(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"model": "mine", "batch": 1, "weights": "given", "commit": "0", "error": "not measured here", "seconds": 0.0}
    measured = Mock(return_value=row)
    monkeypatch.setattr(bench.run, "measure_row", measured)
    options = build_parser().parse_args(["--models", str(file), "--shape", "x:5,3", "--results", str(file.parent), "--name", "mine"])
    options.extra, options.command = [], ["python -m bench.run"]
    assert run(options) == 0
    (entry, batch, _), _ = measured.call_args
    assert (entry.name, entry.shapes, batch) == ("mine", ("x:5,3",), 1)
    assert "not measured here" in (file.parent / "mine.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("--models", "missing.onnx"), "no model and no .onnx file missing.onnx"), (("--models", "resnet18", "--shape", "x:1"), "names none")],
)
def test_what_is_no_model_is_refused(arguments: tuple[str, ...], message: str) -> None:
    done = subprocess.run([sys.executable, "-m", "bench.run", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and message in done.stderr
