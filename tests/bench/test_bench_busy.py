"""Engines beside other work: each condition has each engine's times, pages name the fastest, and failed rows are measured again."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import onnx
import pytest

from bench import busy
from bench.busy import ALONE, BUSY, COPY, busy_processes, main, over_best, table, turn
from bench.command import without_folders
from bench.environment import environment
from tests.bench.test_bench import tiny

WHERE = environment(1, ["python -m bench.busy"])


def times(**engines: float) -> dict[str, Any]:
    return {name: {"median_us": us, "p99_us": 2 * us, "runs": 9} for name, us in engines.items()}


ROW = {
    "model": "m",
    "failed": {},
    "conditions": {condition: times(einsat=900.0, onnxruntime=1000.0, openvino=1200.0) for condition in BUSY},
}


@pytest.mark.usefixtures("forked_python")
def test_a_file_is_timed_under_all_conditions_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(busy, "TURN_SECONDS", 0.1)
    monkeypatch.setattr(busy, "SETTLING_SECONDS", 0.0)
    file = tmp_path / "small.onnx"
    onnx.save(tiny(1), file)
    flags = ["--threads", "1", "--seconds", "0.2", "--engines", "einsat,onnxruntime,no_such_engine", "--results", str(tmp_path)]
    flags += ["--artefacts", str(tmp_path / "made")]
    assert main([str(file), *flags, "--", "--budget", "2s"]) == 0
    stored = json.loads((tmp_path / "busy.json").read_text())
    assert stored["environment"]["command"].startswith("python -m bench.busy small.onnx --threads 1")
    (row,) = stored["rows"]
    assert row["model"] == "small" and "error" not in row and "no_such_engine" in row["failed"]
    assert set(row["conditions"]) == set(BUSY) and row["max_rel_err"]["einsat"] < 1e-5
    for engines in row["conditions"].values():
        assert set(engines) == {"einsat", "onnxruntime"}
        assert all(0 < one["median_us"] <= one["p99_us"] and one["runs"] >= 2 for one in engines.values())
    assert (tmp_path / "made" / "small.einsat").is_dir()
    assert str(tmp_path) not in (tmp_path / "busy.json").read_text() + (tmp_path / "busy.md").read_text()
    broken = {**row, "model": "other", "error": "it broke"}
    (tmp_path / "busy.json").write_text(json.dumps({**stored, "rows": [row, broken]}))
    monkeypatch.setattr(busy, "measure", lambda entry, options: pytest.fail("it has its row"))
    assert main([str(file), *flags, "--resume"]) == 0
    assert [one["model"] for one in json.loads((tmp_path / "busy.json").read_text())["rows"]] == ["small"]


def test_busy_processes_take_processor_time_and_end() -> None:
    def children_seconds() -> float:
        return os.times().children_user

    before = children_seconds()
    with busy_processes(2):
        time.sleep(0.5)
    assert children_seconds() - before > 0.1


def test_a_turn_lasts_as_long_as_it_is_to() -> None:
    class Engine:
        warm_up_ns = 1_000_000

        def time_ns(self, runs: int) -> list[int]:
            time.sleep(0.001 * runs)
            return [1_000_000] * runs

    start = time.monotonic()
    found = turn(Engine(), 0.3)  # type: ignore[arg-type]
    assert 0.3 <= time.monotonic() - start < 3.0 and 20 < len(found) < 400


def test_the_page_compares_with_the_best_peer() -> None:
    assert over_best(ROW, ALONE, "median_us") == 0.9 and over_best({}, ALONE, "median_us") is None
    text = table([ROW, {"model": "n", "error": "it\nbroke"}], WHERE)
    assert "| m | alone | 0.90 / 1.80 | 1.00 / 2.00 | 1.20 / 2.40 | 0.90 | 0.90 |" in text
    assert f"|  | {COPY} |" in text and "| n | it broke |" in text
    assert "beside 2: median 0.90 (at most 0.90) of the best peer's, 99th percentile 0.90 (at most 0.90), 1 models." in text


def test_folders_of_this_machine_are_not_shown() -> None:
    assert without_folders(["--artefacts", "/a/b", "/c/m.onnx", "--results=/d", "--seconds", "2"]) == ["m.onnx", "--seconds", "2"]
    assert without_folders(["--models", "vit,/a/b.onnx,c/d.onnx"]) == ["--models", "vit,b.onnx,d.onnx"]


def test_unknown_models_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["no_such_model"])
    assert "no model and no .onnx file no_such_model" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "python -m bench.busy resnet18 segformer" in capsys.readouterr().out
