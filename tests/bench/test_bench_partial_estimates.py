"""The table of estimated gains of partial rewrites shows the selections with and without them, and why there is no gain."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto

import bench.partial_estimates as bench
from bench.builder import Builder
from bench.models import BenchModel
from lower.roofline import DeviceSpeed


def dilated(batch: int) -> onnx.ModelProto:
    """Return two convolutions; the first one, which is dilated, takes most of the arithmetic."""
    b = Builder("dilated")
    x = b.input("x", (batch, 64, 14, 14), TensorProto.FLOAT)
    y = b.node("Conv", x, b.weight(64, 64, 3, 3), dilations=[9, 9], pads=[9] * 4)
    return b.model(b.node("Conv", b.node("Relu", y), b.weight(8, 64, 1, 1)))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bench.LISTS["own"], "dilated", BenchModel("dilated", dilated))


@pytest.mark.usefixtures("small")
def test_both_programs_are_estimated_and_the_nearest_corrected_one_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["dilated", "--operators", "1", "--regions", "0", "--record", "--results", str(tmp_path)]
    bench.main(command)
    stored, page = json.loads((tmp_path / "partial_estimates.json").read_text()), (tmp_path / "partial_estimates.md").read_text()
    rows = stored["rows"]
    assert [row["target"] for row in rows] == list(bench.TARGETS)
    for row in rows:
        assert 0 < row["with_us"] <= row["without_us"] * 1.001 and row["operators"] == 1 and 0.8 < row["share"] < 1
        assert row["corrected"] > 0 and min(row["best_corrected_us"], row["best_operator_us"]) > 0
        assert row["processor_s"] > 0 and row["commit"] == stored["commit"]
        assert "Conv 1x64x14x14 64x64x3x3" in row["best"] and row["best"] in page and row["why"] in page
    assert "nothing ran on a GPU" in page
    capsys.readouterr()
    bench.main([*command, "--resume"])
    assert capsys.readouterr().out == "dilated at batch 1: recorded\n"
    again = bench.recorded(tmp_path, {**stored, "operators": 2}), bench.recorded(tmp_path, stored)
    assert [len(each) for each in again] == [0, len(rows)]


@pytest.mark.parametrize(
    ("gained", "corrected", "counts", "operator_us", "corrected_us", "launches", "told"),
    [
        (1.2, 3, (1, 2, 0), 10.0, 8.0, 2, "corrected programs gain"),
        (1.2, 0, (1, 2, 0), 10.0, 12.0, 2, "what gains is exact"),
        (1.0, 0, (0, 0, 0), 0.0, 0.0, 0, "it has no convolution"),
        (1.0, 0, (1, 0, 3), 0.0, 0.0, 0, "no program differs in part and takes at most 1.5 times the operations; 3 are equal everywhere"),
        (1.0, 0, (1, 2, 0), 10.0, 12.0, 3, "3 more launches take 6 us, and without them 4.0 us would be gained"),
        (1.0, 0, (1, 2, 0), 10.0, 20.0, 3, "its kernels take 4.0 us more, beside 3 more launches"),
        (1.0, 0, (1, 2, 0), 10.0, 9.0, 1, "alone the operator would gain"),
    ],
)
def test_why_nothing_is_gained_follows_from_the_costs(
    gained: float, corrected: int, counts: tuple[int, int, int], operator_us: float, corrected_us: float, launches: int, told: str
) -> None:
    speed = DeviceSpeed(launch_us=2.0)
    assert bench._reason(gained, corrected, counts, operator_us, corrected_us, launches, speed).startswith(told)


def test_an_unknown_model_is_told_with_those_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench.main(["resnet1800"])
    assert "there is no resnet1800" in capsys.readouterr().err
