"""A GPU's answers become a page that compares Einsat with the fastest peer of the same precision."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import gpu_results

VERSIONS = {"question": "versions", "status": "ok", "python": "3.12", "packages": {"torch": "2"}, "gpus": ["NVIDIA X"]}
RATES = {
    "question": "rates", "status": "ok", "launch_us": 1.0,
    "from_memory_us": [[8192, 1.5], [1 << 30, 400.0]], "from_cache_us": [[8192, 1.1]],
}  # fmt: skip
OUTPUTS = {"question": "net.16: outputs", "status": "ok", "relative_errors": [1e-6, 2e-6, 1e-6]}
TIMES = {
    "question": "net.16: times", "status": "ok", "replay_us": 50.0, "replay_on_streams_us": {"2": 40.0}, "estimated_us": 45.0,
    "steps": [["a", 1.0, 1.0]], "roofline_share": {"float32": 0.25},
}  # fmt: skip
ROUNDED: list[dict[str, Any]] = [
    {"question": "net.16@tf32: outputs", "status": "ok", "relative_errors": [3e-4]},
    {**TIMES, "question": "net.16@tf32: times", "replay_us": 20.0, "replay_on_streams_us": {}, "roofline_share": {"tf32": 0.1}},
]
EAGER = {"question": "net.16: PyTorch", "status": "ok", "replay_us": {"float32": 100.0, "tf32": 30.0, "fp16": "no kernel"}}
COMPILED = {"question": "net.16: PyTorch, compiled, float32", "status": "ok", "replay_us": {"float32": 80.0}, "mode": "default"}
FAILED = {"question": "other: outputs", "status": "failed", "why": "KernelError: illegal\nmemory access"}


def written(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_ours_are_compared_with_the_fastest_peer_of_the_same_precision(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = written(tmp_path / "contact.jsonl", [VERSIONS, RATES, OUTPUTS, TIMES, *ROUNDED, EAGER, FAILED])
    second = written(tmp_path / "compiled.jsonl", [COMPILED, {"question": "net.16: times", "status": "skipped", "why": "the time is over"}])
    records = written(tmp_path / "records.jsonl", [{"status": "ok"}, {"status": "ok", "n": 2}, {"status": "failed"}])
    arguments = [str(first), str(second), "--date", "2026-01-02", "--results", str(tmp_path), "--records", str(records), "--commit", "c0"]
    assert gpu_results.main(arguments) == 0
    page = (tmp_path / "cuda_contact.md").read_text()
    assert page in capsys.readouterr().out
    rows = {(row["network"], row["precision"]): row for row in json.loads((tmp_path / "cuda_contact.json").read_text())["rows"]}
    net = rows["net", "float32"]
    assert net["batch"] == 16 and net["error"] == 2e-6 and net["one_stream_us"] == 50.0
    assert "| net | 16 | float32 | 2e-06 | 1 | 50 | 2: 40 | 45 | 100 | 80 (default) |  | 2.00 | 30 | none | 25 % | c0 |" in page
    assert "| net | 16 | tf32 | 3e-04 | 1 | 20 |  | 45 | 30 |  |  | 1.50 |  |  | 10 % | c0 |" in page, "beside what its peers take in tf32"
    assert "| other | 1 | float32 | KernelError: illegal memory access |" in page, "what went wrong stands in its row"
    assert "In tf32 over the fastest peer: **1.50** in the geometric mean of 1" in page and "In fp16" not in page
    assert "In float32 over the fastest peer: **2.00** in the geometric mean of 1 whose outputs were right, slower on 0." in page
    assert "by estimates, before it had timed anything" in page
    assert "takes 1.00 us" in page and "| 1073741824 | 400.00 us |  |" in page and "1 failed, 2 ok" in page


def test_what_was_not_asked_for_again_stays_on_record(tmp_path: Path) -> None:
    """If a network is measured again, earlier peers' times are kept unless there are later ones."""
    by_xla = {"question": "net.16: XLA, tf32", "status": "ok", "queued_us": {"tf32": 25.0}}
    first = written(tmp_path / "a.jsonl", [VERSIONS, OUTPUTS, TIMES, *ROUNDED, EAGER, COMPILED, by_xla, FAILED])
    faster: list[dict[str, Any]] = [OUTPUTS, {**TIMES, "replay_us": 25.0, "replay_on_streams_us": {}}]
    second = written(tmp_path / "b.jsonl", [VERSIONS, *faster, {**EAGER, "replay_us": {"float32": 90.0}}])
    for answers, commit, added in ((first, "c0", []), (second, "c1", ["--add"])):
        assert gpu_results.main([str(answers), "--date", "2026-01-02", "--results", str(tmp_path), "--commit", commit, *added]) == 0
    rows = {(row.network, row.precision): row for row in gpu_results.recorded_rows(tmp_path / "cuda_contact.json")}
    assert len(rows) == 3 and rows["other", "float32"].commit == rows["net", "tf32"].commit == "c0"
    net = rows["net", "float32"]
    assert (net.commit, net.one_stream_us, net.compiled_us, net.compiled_mode) == ("c1", 25.0, {"float32": 80.0}, "default")
    assert net.xla_us == {"tf32": 25.0}
    assert net.pytorch_us == {"float32": 90.0, "tf32": 30.0, "fp16": "no kernel"}
    assert "| 90 | 80 (default) |  | 3.20 | 30 | none | 25 % | c1 |" in (tmp_path / "cuda_contact.md").read_text()


def test_rows_of_a_page_at_one_commit_are_of_that_commit(tmp_path: Path) -> None:
    answers = written(tmp_path / "a.jsonl", [VERSIONS, OUTPUTS, TIMES])
    assert gpu_results.main([str(answers), "--date", "2026-01-02", "--results", str(tmp_path), "--commit", "c0"]) == 0
    path = tmp_path / "cuda_contact.json"
    page = json.loads(path.read_text())
    for row in page["rows"]:
        del row["commit"]
    path.write_text(json.dumps(page))
    assert [row.commit for row in gpu_results.recorded_rows(path)] == ["c0"]
