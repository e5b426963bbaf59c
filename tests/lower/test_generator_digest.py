"""What is measured of generated code is filed under the sources that generated it; nobody has to raise a number."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lower.targets import lowering
from lower.targets.cpu.generator import library
from lower.targets.cpu.generator.library import generator_digest
from tests.support.paths import ROOT


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    for folder in library._SOURCES:
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def test_equal_sources_elsewhere_have_the_same_digest(sources: Path) -> None:
    assert library.digest_of(sources) == library.digest_of(ROOT) == generator_digest() == lowering("cpu").generator_digest
    assert not lowering("reference").generator_digest


CHANGED = "lower/eoperator/terms.py", "lower/targets/cpu/generator/reduction.py", "egraph/tensor/node.py", "egraph/tensor/expr/index.py"


@pytest.mark.parametrize("changed", CHANGED)
def test_another_source_makes_another_digest(sources: Path, changed: str) -> None:
    path = sources / changed
    path.write_text(path.read_text().replace("return", "return ", 1))
    assert library.digest_of(sources) != generator_digest()
    path.rename(path.with_name("renamed.py"))
    assert library.digest_of(sources) != generator_digest()
