"""The four published searches: few states are seen, the published program is found and proved, and the page lists it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.searches import PUBLISHED, Published, main, measured


@pytest.mark.parametrize("published", PUBLISHED, ids=[published.name for published in PUBLISHED])
def test_published_targets_take_few_states(published: Published) -> None:
    row = measured(published, repeats=1)
    assert row.states <= 16 < published.einnet_states
    assert row.steps and row.program, "the published program was not found"
    assert row.proved == row.found > 0


def test_the_page_holds_every_search(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--repeats", "1", "--results", str(tmp_path)]) == 0
    page, stored = (tmp_path / "searches.md").read_text(), json.loads((tmp_path / "searches.json").read_text())
    assert page in capsys.readouterr().out
    assert stored["command"] == "python -m bench.searches --repeats 1" and stored["cpu"] and stored["commit"] is not None
    assert [row["name"] for row in stored["rows"]] == [published.name for published in PUBLISHED]
    for row in stored["rows"]:
        assert f"| {row['name']} | {row['to']} | {row['states']:,} | {row['einnet_states']:,} |" in page
        assert all(row[key] > 0 for key in ("search_ms", "emit_ms", "proof_ms"))


def test_a_search_that_misses_its_program_says_so() -> None:
    """If the wanted form is not among the found programs, no program is reported, although the found ones are proved."""
    first = PUBLISHED[0]
    row = measured(Published(first.name, first.to, first.make, first.target, first.einnet_states, "no state holds this"), repeats=1)
    assert not row.steps and not row.program and row.proved == row.found > 0
