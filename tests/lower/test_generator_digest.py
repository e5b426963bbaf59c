"""Measurements of generated code are keyed by a digest of the generator's sources, so that nobody has to raise a version number."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from egraph.optimize.estimated import compile_options
from egraph.optimize.kernels import kernel_program
from egraph.tensor import Implementation, Node
from egraph.tensor.ops import apply
from lower.compile import compile_program
from lower.eoperator import KernelRequest
from lower.targets import lowering
from lower.targets.cpu.generator import library
from lower.targets.cpu.generator.library import generator_digest
from lower.targets.cuda import lowering as cuda
from lower.targets.cuda.generator import GeneratedKernel, write
from runtime.devices.cpu.native.build import source_digest
from runtime.devices.cuda import kernels
from tests.support.fragments import leaf
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
    digests = [way.code_digest(leaf(0, 4), Implementation.parse(text, way.target)) for text in texts]
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


WINDOW: dict[str, Any] = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 1, "layout": "NCHW"}
QUERIES, KEYS, VALUES = (leaf(k, 2, 40, 16) for k in range(3))
ATTENTION = apply("MatMul", apply("Softmax", apply("MatMul", QUERIES, apply("Transpose", KEYS, perm=(0, 2, 1))), axis=2), VALUES)
FOR_A_GPU = [
    ("cuda", apply("Relu", leaf(0, 40, 30))),
    ("cuda", apply("Conv", leaf(0, 1, 64, 9, 9), leaf(1, 40, 64, 3, 3, constant=True), **WINDOW)),
    ("cuda@bf16", apply("MatMul", leaf(0, 64, 64), leaf(1, 64, 64))),
    ("attention.blocks", ATTENTION),
]


@pytest.mark.parametrize(("text", "fragment"), FOR_A_GPU)
def test_kernels_for_a_gpu_are_filed_under_the_text_that_is_timed(
    text: str, fragment: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text is that of the kernel alone, with constants ordered as tiles read them, so that changes to other kernels keep its times."""
    way = lowering("cuda:h100")
    implementation, written = Implementation.parse(text, way.target), list[GeneratedKernel]()

    def noting(request: KernelRequest) -> GeneratedKernel:
        written.append(write(request))
        return written[-1]

    monkeypatch.setattr(cuda, "write", noting)
    cuda._text_digest.cache_clear()
    digest = way.code_digest(fragment, implementation)
    assert digest and digest == way.code_digest(fragment, implementation)
    compile_program(kernel_program(fragment, implementation, seed=0), tmp_path / "one", compile_options(1, "cuda:h100"))
    (timed,) = kernels.read(tmp_path / "one" / kernels.FILE).values()
    assert (timed.text, timed.launches) == (written[0].text, written[0].launches)
    monkeypatch.setattr(cuda, "write", lambda request: replace(write(request), text=write(request).text + "// another"))
    cuda._text_digest.cache_clear()
    assert way.code_digest(fragment, implementation) != digest
    cuda._text_digest.cache_clear()


def test_what_a_gpu_has_no_kernel_for_is_filed_under_the_generator() -> None:
    way, sums = lowering("cuda:h100"), apply("Add", leaf(0, 4, dtype="int32"), leaf(1, 4, dtype="int32"))
    assert way.code_digest(sums, way.generated) == way.generator_digest
    assert way.code_digest(leaf(0, 4), Implementation.parse("cublas.matmul", way.target)) == ""
