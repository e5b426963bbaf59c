"""What is measured of generated code is filed under the sources that generated it; nobody has to raise a number."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from egraph.tensor import Implementation
from lower.targets import lowering
from lower.targets.cpu.generator import library
from lower.targets.cpu.generator.library import generator_digest
from runtime.devices.cpu.native.build import source_digest
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


def test_kernels_in_c_are_filed_under_their_own_sources(tmp_path: Path) -> None:
    way = lowering("cpu")
    texts = ["onednn.matmul", "attention.blocks", "recurrence.fold", way.generated.text]
    digests = [way.code_digest(Implementation.parse(text, way.target)) for text in texts]
    assert digests[0] == "" and digests[3] == generator_digest() and len(set(digests)) == 4
    folder = ROOT / "lower/targets/cpu"
    shutil.copytree(folder, tmp_path / "cpu", ignore=shutil.ignore_patterns("__pycache__", "*.py"))
    source = tmp_path / "cpu/attention/attention.c"
    assert source_digest(source) == digests[1]
    for name in ("kernel.h", "instruction_sets.h"):
        header = tmp_path / "cpu" / name
        header.write_text(header.read_text() + "\n")
        assert source_digest(source) not in digests
        digests.append(source_digest(source))
