"""An installation is complete: data files, types, the version and the pinned extras; a wheel runs without a compiler."""

from __future__ import annotations

import fnmatch
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import egraph
from tests.support.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGES = ("egraph", "verify", "lower", "runtime")


def data_files() -> list[Path]:
    return [
        path
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc") and "__pycache__" not in path.parts
    ]


def test_every_data_file_is_packaged() -> None:
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["*"]
    files = data_files()
    assert any(path.name == "dispatch.c" for path in files) and any(path.suffix == ".j2" for path in files)
    for path in files:
        assert any(fnmatch.fnmatch(path.name, pattern) for pattern in patterns), f"{path.relative_to(ROOT)} would not be installed"
        assert (path.parent / "__init__.py").exists(), f"{path.parent} is no package, so {path.name} would not be installed"


def test_every_package_is_found_and_typed() -> None:
    include = PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]
    for package in PACKAGES:
        assert f"{package}*" in include
        assert (ROOT / package / "py.typed").exists()
        for folder in {path.parent for path in (ROOT / package).rglob("*.py")}:
            assert (folder / "__init__.py").exists(), f"{folder.relative_to(ROOT)} needs an __init__.py to be installed"


def test_the_version_is_one_and_is_in_the_changelog() -> None:
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "egraph.__version__"}
    first = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert first and first[1] == egraph.__version__


def test_what_the_makefile_installs_is_what_the_benchmark_pins() -> None:
    pinned = set(re.findall(r"'([\w-]+==[\w.]+)'", (ROOT / "Makefile").read_text(encoding="utf-8")))
    assert pinned and pinned <= set(PROJECT["project"]["optional-dependencies"]["bench"])


TINY = """
import numpy as np, onnx.parser, sys
model = onnx.parser.parse_model('''
    <ir_version: 9, opset_import: ["" : 20]>
    tiny (float[64, 64] x) => (float[64, 64] y) { a = Tanh(x)  b = Exp(a)  c = Softmax(b)  y = Mul(c, a) }''')
onnx.save(model, sys.argv[1])
"""


@pytest.mark.slow
def test_a_wheel_runs_without_a_compiler(tmp_path: Path) -> None:
    """The wheel's own files optimise and run a model, with this environment's dependencies and an empty PATH and cache."""
    source = tmp_path / "source"  # a build leaves files in its folder
    for package in PACKAGES:
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(source)], check=True)
    (wheel,) = tmp_path.glob("einsat-*.whl")
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    for path in data_files():
        assert (site / path.relative_to(ROOT)).exists(), f"{path.relative_to(ROOT)} is not in the wheel"
    environment = {
        "PATH": str(tmp_path / "nothing"), "HOME": str(tmp_path), "PYTHONPATH": str(site), "EINSAT_CACHE": str(tmp_path / "cache"),
        **{name: value for name, value in os.environ.items() if name.startswith("LD_")},
    }  # fmt: skip
    model = tmp_path / "tiny.onnx"
    subprocess.run([sys.executable, "-c", TINY, str(model)], check=True, cwd=tmp_path)
    optimise = ["egraph.optimize", "tiny.onnx", "--budget", "6s", "--threads", "1"]
    for command in (["egraph.optimize", "--help"], optimise, ["runtime.run", "tiny.opt.onnx"]):
        done = subprocess.run([sys.executable, "-m", *command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "tiny.einsat/report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
