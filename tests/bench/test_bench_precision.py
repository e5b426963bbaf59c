"""Time and error by precision: a row has both for each engine that ran, and the reason for each that did not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import precision
from bench.record import origin
from tests.bench.test_bench import TINY


@pytest.mark.usefixtures("forked_python")
def test_a_row_has_times_and_errors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(precision, "LISTS", {"own": {"tiny": TINY}})
    monkeypatch.setattr(precision, "MODELS", {})
    monkeypatch.setattr(precision, "SECONDS", 0.1)
    monkeypatch.setattr(precision, "PEERS", {"onnxruntime": "onnxruntime", "openvino": "no_such_engine"})
    monkeypatch.setattr(precision, "COLUMNS", ("onnxruntime", "openvino", *precision.OURS))
    precision.main(["--only", "tiny", "--threads", "1", "--budget", "15s", "--record", "--name", "unit", "--results", str(tmp_path)])
    stored = json.loads((tmp_path / "unit.json").read_text())
    (row,) = stored["rows"]
    assert set(row["median_us"]) == {"onnxruntime", "einsat", "einsat auto"} and set(row["failed"]) == {"openvino"}
    assert set(row["max_rel_err"]) == {"einsat", "einsat auto"}
    assert row["max_rel_err"]["einsat"] <= 1e-4 and row["max_rel_err"]["einsat auto"] <= 1e-2
    assert row["precision"]["asked"] == "auto" and stored["tolerance"] == "1e-2"
    text = (tmp_path / "unit.md").read_text()
    assert "| tiny |" in text and "over onnxruntime (1 models)" in text and "* tiny, openvino: " in text
    with pytest.raises(SystemExit):
        precision.main(["--only", "tiny,huge"])
    assert "no model huge" in capsys.readouterr().err


def test_a_model_that_cannot_be_made_says_why() -> None:
    def fail(batch: int) -> None:
        raise FileNotFoundError("no such package")

    row = precision.measured(type(TINY)("broken", fail), 1, "5s", "1e-2")
    assert set(row.failed) == set(precision.COLUMNS) and "no such package" in row.failed["einsat"]
    assert "| broken | failed |" in precision.page([row], origin(1, ["x"], tolerance="1e-2", budget="5s"))


def test_peers_beyond_the_tolerance_are_counted_apart() -> None:
    """For example, OpenVINO's bf16 gives NaN for a MiniLM, and its error on a ResNet is 0.23 of the largest output."""
    times = {"onnxruntime": 8.0, "openvino": 2.0, "einsat auto": 4.0}
    errors = (("right", 5e-3), ("far", 0.2), ("broken", float("nan")))
    rows = [precision.Row(name, times, {"openvino": error, "einsat auto": 1e-3}) for name, error in errors]
    where = origin(1, ["x"], tolerance="1e-2", budget="5s")
    assert "mean: 2.00 over onnxruntime (3 models); 0.50 over openvino (3 models)." in precision.page(rows, where)
    assert "Where `openvino` itself is within that tolerance: 0.50 over openvino (1 models)." in precision.page(rows, where)
    assert "itself is within" not in precision.page(rows[1:], where)
