"""The command that judges corpora prints and writes its results, even if it is stopped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.corpora import command
from bench.corpora.__main__ import main
from bench.corpora.command import INTERRUPTED
from bench.corpora.judge import Judgement, judge_all
from tests.support.paths import CORPORA

DATA = CORPORA


def test_results_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Several corpora share one table; the JSON has one entry per line, and the recorded command names no folder."""
    corpora = [str(DATA / f"{name}.json") for name in ("taso", "tensat")]
    assert main([*corpora, "--only", "-12", "--results", str(tmp_path)]) == 0
    assert " 1/2 taso-121" in " " + capsys.readouterr().out
    report = json.loads((tmp_path / "corpora.json").read_text())
    assert [corpus["corpus"] for corpus in report["corpora"]] == ["taso", "tensat"]
    assert [each["verdict"] for each in report["corpora"][0]["judged"]] == ["proved", "refuted"]
    assert report["command"].startswith("python -m bench.corpora taso.json tensat.json --only -12 ")
    lines = (tmp_path / "corpora.json").read_text().splitlines()
    assert [json.loads(line.strip().rstrip(","))["id"] for line in lines if '"id"' in line] == ["taso-121", "taso-127"]
    page = (tmp_path / "corpora.md").read_text()
    assert "| taso | 2 | 2 | 2 | 1 | 0 | 0 | 1 | 2 of 2 |" in page and "Z3" in page and str(DATA) not in page
    assert "Not decided" not in page and "Interrupted" not in page


def test_an_interrupt_keeps_what_was_decided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def stopped(*arguments: Any) -> Iterator[Judgement]:
        yield next(judge_all(*arguments))
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "judge_all", stopped)
    assert main([str(DATA / "taso.json"), str(DATA / "tensat.json"), "--only", "-12", "--results", str(tmp_path)]) == INTERRUPTED
    assert "1 entries of 2, then interrupted, 1 of them different: 1 proved" in capsys.readouterr().out
    (corpus,) = json.loads((tmp_path / "corpora.json").read_text())["corpora"]
    assert corpus["entries"] == 2 and [each["id"] for each in corpus["judged"]] == ["taso-121"]
    assert "Interrupted after 1 of the 2 entries of taso." in (tmp_path / "corpora.md").read_text()


def test_a_proof_is_given_up_after_so_much_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(DATA / "taso.json"), "--only", "taso-121", "--work", "40", "--results", str(tmp_path)]) == 0
    assert "given up after 40 units of work" in capsys.readouterr().out
    assert "* `taso-121`: unknown: " in (tmp_path / "corpora.md").read_text()
