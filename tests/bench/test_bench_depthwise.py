"""Depthwise convolutions are timed for every implementation, and their rows are recorded in a table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import depthwise
from bench.depthwise import IMPLEMENTATIONS, Row, convolution, main


def test_a_text_describes_a_convolution() -> None:
    plain, whole = (convolution("12x32 5/2", with_swish=with_swish) for with_swish in (False, True))
    assert plain.op == "Conv" and plain.inputs[1].type.sizes == (32, 1, 5, 5) and plain.type.sizes == (1, 6, 6, 32)
    assert whole.op == "Mul" and whole.type == plain.type


def test_the_library_is_the_measure() -> None:
    row = Row("8x16 3", 1, {"depthwise.conv": 2.0, "onednn.convolution": 5.0, "tvm": 4.0}, flops=6e3)
    assert row.over_library == 2.5 and row.cells() == ["8x16 3", "2", "5", "4", "3", "2.50"]


def test_recording_writes_a_row_alone_and_one_with_swish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(depthwise, "TURNS", 1)
    main(["8x16 3", "--record", "--results", str(tmp_path)])
    rows = json.loads((tmp_path / "depthwise.json").read_text())["rows"]
    assert [row["name"] for row in rows] == ["8x16 3", "8x16 3, swish"]
    assert all(set(row["times_us"]) == set(IMPLEMENTATIONS) and row["flops"] == 2 * 9 * 8 * 8 * 16 for row in rows)
    assert json.loads((tmp_path / "depthwise.json").read_text())["command"] == "python -m bench.depthwise 8x16 3 --record"
    assert "times as fast as the vendor library" in (tmp_path / "depthwise.md").read_text()
