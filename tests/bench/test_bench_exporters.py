"""The list of other exporters' models is known without their packages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench.exporters import MODELS, main
from tests.support.paths import ROOT

PACKAGES = {
    "keras": ("tensorflow", "tf2onnx"), "jax": ("jax2onnx", "flax"), "sklearn": ("sklearn", "skl2onnx"),
    "paddle": ("paddle", "paddle2onnx"),
}  # fmt: skip


def test_models_are_listed_without_the_packages_of_their_exporters(capsys: pytest.CaptureFixture[str]) -> None:
    packages = "{'tensorflow', 'keras', 'jax', 'sklearn', 'paddle', 'egraph', 'numpy'}"
    code = f"import sys, bench.exporters; sys.exit(bool({packages} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
    assert main([]) == 0
    assert capsys.readouterr().out.split()[-len(MODELS) :] == list(MODELS)


def test_an_unknown_name_is_refused_with_those_that_are_known(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["caffe", str(tmp_path / "models")]) == 2
    assert "keras_gru" in capsys.readouterr().err and not (tmp_path / "models").exists()


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_exported_where_its_exporter_is_installed(name: str, tmp_path: Path) -> None:
    for package in PACKAGES[name.split("_")[0]]:
        pytest.importorskip(package)
    assert main([name, str(tmp_path)]) == 0
    assert (tmp_path / f"{name}.onnx").stat().st_size > 1000
