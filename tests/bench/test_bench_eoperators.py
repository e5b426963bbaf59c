"""The benchmark of generated kernels has a line for each kernel and its copy, and a page for all of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

import bench.eoperators as bench
from egraph.tensor.ops import apply
from tests.support.fragments import leaf


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the cases by two that take little time."""
    known = {"relu": apply("Relu", leaf(0, 64, 64)), "softmax": apply("Softmax", leaf(0, 64, 64), axis=1)}
    monkeypatch.setattr(bench, "cases", lambda: known)
    monkeypatch.setattr(bench, "large_cases", lambda: known)
    monkeypatch.setattr(bench, "SECONDS", 0.0)


@pytest.mark.usefixtures("small")
def test_each_kernel_is_timed_beside_a_copy_of_as_many_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    bench.main(["soft"])
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("softmax") and "copy" in line and line.endswith("%")


@pytest.mark.usefixtures("small")
def test_recording_writes_what_was_measured_on_each_number_of_threads(tmp_path: Path) -> None:
    bench.main(["--record", "--results", str(tmp_path)])
    stored, page = json.loads((tmp_path / "eoperators.json").read_text()), (tmp_path / "eoperators.md").read_text()
    assert stored["command"] == "python -m bench.eoperators --record" and stored["cpu"] and stored["commit"] is not None
    found = [(row["large"], row["threads"], row["name"], row["size_bytes"]) for row in stored["rows"]]
    assert found == [(large, threads, name, 2 * 64 * 64 * 4) for large, threads in bench.RECORDED for name in ("relu", "softmax")]
    assert all(row["time_us"] > 0 and row["copy_us"] > 0 for row in stored["rows"])
    assert page.count("| relu | 0.0 |") == 3 and sections(page) == [
        "Tensors beyond the caches, 1 thread", "Tensors beyond the caches, 2 threads", "Tensors in caches, 1 thread",
    ]  # fmt: skip


def sections(page: str) -> Sequence[str]:
    return [line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")]


def test_a_kernel_that_takes_half_as_long_as_the_copy_is_twice_as_fast() -> None:
    row = bench.Row("x", large=True, threads=1, size_bytes=2000, time_us=1.0, copy_us=2.0)
    assert row.of_copy == 2.0 and row.gigabytes_per_second == 2.0 and row.line().endswith("200%")
