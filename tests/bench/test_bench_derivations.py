"""The benchmark times each derived program next to the direct one, and writes a page of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import bench.derivations as bench

QUICK = ["--rounds", "1", "--runs", "1", "--threads", "1"]


def test_recording_writes_every_program_beside_the_direct_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench.main(["4@8", "2@9 5x5", "--epilogue", "--only", "F(2x2)", "F(3x3)", "--record", "--results", str(tmp_path), *QUICK])
    stored, page = json.loads((tmp_path / "derivations.json").read_text()), (tmp_path / "derivations.md").read_text()
    assert stored["command"] == 'python -m bench.derivations --record --epilogue 4@8 "2@9 5x5"' and stored["threads"] == 1
    rows = stored["rows"]
    assert {row["operator"] for row in rows} == {"4@8", "2@9 5x5"} and len(capsys.readouterr().out.splitlines()) == len(rows) > 2
    assert all(row["error"] < 1e-4 for row in rows) and any(row["program"].startswith("winograd") for row in rows)
    for row in rows:
        assert row["times_as_fast"] == pytest.approx(row["direct_us"] / row["time_us"]) and row["line_ns"] == [None, None]
        assert f"| {row['operator']} | {row['program']} | {row['time_us']:,.1f} | {row['times_as_fast']:.2f} |" in page
    assert [row["times_as_fast"] for row in rows if row["program"] == "direct"] == [1.0, 1.0]


def test_what_is_no_operator_is_told_before_anything_is_timed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench.main(["4@8", "wide"])
    told = capsys.readouterr()
    assert "'wide' is no operator" in told.err and not told.out
