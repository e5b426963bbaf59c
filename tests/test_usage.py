"""What the command line is given that cannot be: it says what, where and how to fix it, at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from egraph.errors import ModelError
from egraph.optimize.arguments import parse, to_options
from runtime.cores import usable_cores
from runtime.session import Session
from tests.plans import save
from tests.runtime_plans import matmul_relu


def test_more_threads_than_cores_are_refused() -> None:
    """The threads would wait for each other at every kernel: 9999 of them did not finish in minutes."""
    cores = usable_cores()
    assert to_options(parse(["m.onnx", "--threads", str(cores)])).threads == cores
    with pytest.raises(ModelError, match=f"--threads 9999 is more than the {cores} cores(.|\n)*fix: give --threads {cores} or fewer"):
        to_options(parse(["m.onnx", "--threads", "9999"]))


def test_a_session_uses_no_more_threads_than_there_are_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save(tmp_path / "m.einsat", *matmul_relu())
    for told in ("", "9999"):
        monkeypatch.setenv("OMP_NUM_THREADS", told)
        for asked in (None, 9999):
            with Session(folder, threads=asked) as session:
                assert session.executable.threads == usable_cores()
