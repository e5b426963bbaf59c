"""New rows of networks on the recorded device are added to the recorded rows."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bench import cuda_networks
from bench.cuda_networks import Row, main, on_record


def row(name: str, batch: int, target: str = "cuda:h100", *_: object) -> Row:
    return Row(name, batch, target, "estimated", {"cuda": 2}, 1e-6, 9.0, 5.0, 1000, "saturated", "device")


def test_rows_are_added_to_those_on_record_and_say_their_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repeated measurement replaces its row; if a file names its commit once, all its rows have that commit."""
    monkeypatch.setattr(cuda_networks, "measured", row)

    def record(*arguments: str) -> dict[tuple[str, int], str]:
        monkeypatch.setattr(sys, "argv", ["cuda_networks", *arguments, "--record", str(tmp_path)])
        assert main() == 0
        return {(each.model, each.batch): each.commit for each in on_record(tmp_path)}

    path = tmp_path / "cuda_networks.json"
    assert list(record("dcgan", "fsrcnn", "--batch", "1")) == [("dcgan", 1), ("fsrcnn", 1)]
    old = json.loads(path.read_text())
    for each in old["rows"]:
        del each["commit"]
    path.write_text(json.dumps({**old, "commit": "earlier"}))
    commits = record("fsrcnn", "--batch", "1", "16", "--add")
    assert list(commits) == [("dcgan", 1), ("fsrcnn", 1), ("fsrcnn", 16)]
    assert commits["dcgan", 1] == "earlier" != commits["fsrcnn", 1] == commits["fsrcnn", 16]
    assert "MB | earlier |" in (tmp_path / "cuda_networks.md").read_text()
    assert list(record("infogan", "--batch", "1")) == [("infogan", 1)]
