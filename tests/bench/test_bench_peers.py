"""A row has times of the peers that are right, and the reasons why others have none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import peers
from bench.models import BenchModel
from bench.record import origin
from tests.bench.test_bench import TINY


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> BenchModel:
    monkeypatch.setattr(peers, "MODELS", {"tiny": TINY})
    monkeypatch.setattr(peers, "SECONDS", 0.1)
    return TINY


def test_a_row_has_times_and_reasons(tiny: BenchModel) -> None:
    row = peers.measured(tiny.name, 1, ("onnxruntime", "no_such_engine"))
    assert row.fastest == "onnxruntime" and set(row.median_us) == {"onnxruntime"} and "no_such_engine" in row.failed
    text = peers.page([row], origin(1, ["python -m bench.peers"]))
    assert "Fastest: onnxruntime for 1, openvino for 0, torch_compile for 0, tvm for 0 of 1 models." in text
    assert f"| tiny | {row.median_us['onnxruntime'] / 1e3:,.3f} (1.00) | failed | failed | failed | onnxruntime |" in text
    assert "* tiny, no_such_engine: " in text


def test_all_models_are_put_on_record(tiny: BenchModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "installed_engines", lambda: ("einsat", "onnxruntime"))
    peers.main(["--threads", "1", "--results", str(tmp_path), "--models", "tiny"])
    assert not list(tmp_path.iterdir()), "some models are no table"
    peers.main(["--threads", "1", "--results", str(tmp_path)])
    stored = json.loads((tmp_path / "peers.json").read_text())
    assert [row["model"] for row in stored["rows"]] == ["tiny"] and stored["threads"] == 1
    assert "| tiny |" in (tmp_path / "peers.md").read_text()


def test_unknown_models_are_named(tiny: BenchModel, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        peers.main(["--models", "tiny,huge"])
    assert "no model huge" in capsys.readouterr().err
