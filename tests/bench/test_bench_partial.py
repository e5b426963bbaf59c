"""The benchmark of partial rewrites times mutants alone, corrected and exact next to the operator itself, and writes their page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import bench.partial as bench

QUICK = ["--rounds", "1", "--runs", "1"]


def test_recording_writes_the_best_of_every_kind(tmp_path: Path) -> None:
    bench.main(["2@4 n2", "--record", "--results", str(tmp_path), "--threads", "1", "2", *QUICK])
    stored, page = json.loads((tmp_path / "partial.json").read_text()), (tmp_path / "partial.md").read_text()
    rows = stored["rows"]
    assert {(row["kind"], row["threads"]) for row in rows} >= {(k, n) for k in ("base", "mutant alone", "corrected") for n in (1, 2)}
    assert all(row["error"] < 1e-4 for row in rows if row["kind"] != "mutant alone")
    assert all(row["error"] > 1e-2 and row["corrected_cells"] > 0 for row in rows if row["kind"] == "mutant alone")
    best = max(row["times_as_fast"] for row in rows if row["kind"] == "corrected")
    assert f"| {best:.2f} |" in page and all(f"| asked for | 2@4 n2 | {threads} |" in page for threads in (1, 2))
    assert max(row["times_as_fast"] for row in rows if row["kind"] == "base") == 1.0


def test_borders_of_mirrored_elements_are_timed_corrected(capsys: pytest.CaptureFixture[str]) -> None:
    """The operator reads a tensor that another operator produces."""
    bench.main(["2@8 g2 s2 reflect", *QUICK])
    corrected = [line for line in capsys.readouterr().out.splitlines() if " corrected " in line]
    assert corrected and any("zeros for reflect padding" in line for line in corrected)


def test_what_is_no_operator_is_told_before_anything_is_timed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench.main(["wide"])
    assert "'wide' is no operator" in capsys.readouterr().err
