"""The table of cuDNN's plans lists equal convolutions once, and the library's message for those without a plan."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx
import pytest
from onnx import parser

from bench import cuda_plans
from bench.cuda_plans import Cell, Convolution, convolutions, main, on_record, page, planned
from bench.models import BenchModel
from bench.record import origin
from runtime.devices.cuda.gpus import GPUS
from tests.lower.test_cuda_libraries import needs_cudnn

MODEL = """
<ir_version: 8, opset_import: ["": 17]>
g (float[1,8,9,9] x, float[8,8,3,3] w, float[8,4,2,2] v) => (float[1,4,18,18] y)
{
  p = Conv<pads = [1,1,1,1]>(x, w)
  q = Conv<pads = [1,1,1,1]>(p, w)
  y = ConvTranspose<strides = [2,2]>(q, v)
}
"""


def make(batch: int) -> onnx.ModelProto:
    return parser.parse_model(MODEL)


def test_equal_convolutions_are_one() -> None:
    made, others = convolutions(BenchModel("m", make), 1)
    assert sorted(each.text for each in made) == ["Conv 1x8x9x9 * 8x8x3x3 p1x1x1x1", "ConvTranspose 1x8x9x9 * 8x4x2x2 s2x2"]
    assert others == 0


@needs_cudnn
def test_plans_are_built_in_each_layout_and_precision() -> None:
    for convolution in convolutions(BenchModel("m", make), 1)[0]:
        cells = planned(convolution)
        assert len({(cell.gpu, cell.layout, cell.precision) for cell in cells}) == 12
        assert all(bool(cell.plan) != bool(cell.refusal) for cell in cells) and any(cell.plan for cell in cells)


def test_what_has_no_plan_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only strict float32 lacks a plan: its cells and the reason below the table show that; recorded convolutions are not planned again."""
    asked: list[str] = []

    def without_strict(convolution: Convolution) -> Sequence[Cell]:
        asked.append(convolution.text)
        return tuple(
            Cell(gpu, layout, precision, *(("", "No valid engine configs") if precision == "float32" else ("41+65536:TILE_SIZE=4", "")))
            for gpu in GPUS for layout in cuda_plans.LAYOUTS for precision in cuda_plans.PRECISIONS
        )  # fmt: skip

    monkeypatch.setattr(cuda_plans, "planned", without_strict)
    monkeypatch.setattr(cuda_plans, "is_installed", lambda: True)
    monkeypatch.setattr(cuda_plans, "_libraries", lambda: {"nvidia-cudnn-cu13": "9"})
    monkeypatch.setattr(cuda_plans, "MODELS", {name: BenchModel(name, make) for name in ("first", "second")})
    monkeypatch.setattr(cuda_plans, "unseen", dict)
    assert main(["first", "--record", str(tmp_path)]) == 0
    assert main(["second", "--record", str(tmp_path), "--add"]) == 0
    assert len(asked) == 2 and [row.models for row in on_record(tmp_path)] == [("first, batch 1", "second, batch 1")] * 2
    text = (tmp_path / "cuda_plans.md").read_text()
    assert "| none / 41 | none / 41 |" in text and "With a plan in float32, of 2 convolutions: 0 on h100" in text
    assert "* Conv 1x8x9x9 * 8x8x3x3 p1x1x1x1 (first, batch 1), h100, float32: NCHW: No valid engine configs; NHWC: No valid" in text
    assert "h100, tf32" not in text and "12 cells: No valid engine configs" in text
    where = origin(1, ("bench",), libraries={}, unseen=True, complete=False, left_out={"third": "there is no file"})
    assert "third is left out: there is no file." in page([], where) and "ended early" in page([], where)
    monkeypatch.setattr(cuda_plans, "_libraries", lambda: {"nvidia-cudnn-cu13": "10"})
    assert on_record(tmp_path) == []


def test_without_the_library_nothing_is_planned(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(cuda_plans, "is_installed", lambda: False)
    assert main([]) == 2 and "pip install" in capsys.readouterr().out
