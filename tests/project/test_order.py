"""The test files listed as longest exist and run first."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.support.order import LONGEST_FIRST, longest_first
from tests.support.paths import ROOT


def test_long_files_exist_and_are_listed_once() -> None:
    assert len(set(LONGEST_FIRST)) == len(LONGEST_FIRST)
    assert [name for name in LONGEST_FIRST if not (ROOT / "tests" / f"{name}.py").exists()] == []


def test_long_files_come_first_and_tests_keep_their_order_inside() -> None:
    def item(name: str) -> Any:
        return SimpleNamespace(nodeid=name)

    first, second = (f"tests/{name}.py" for name in LONGEST_FIRST[:2])
    names = ["tests/b/test_short.py::two", "tests/b/test_short.py::one", f"{second}::b[x]", f"{first}::z", f"{second}::a"]
    assert [each.nodeid for each in longest_first([*map(item, names)])] == [names[k] for k in (3, 2, 4, 0, 1)]


def test_the_command_keeps_the_order() -> None:
    """By default, pytest-xdist would start with the files that have the most tests."""
    assert "--dist loadfile --no-loadscope-reorder" in (ROOT / "Makefile").read_text(encoding="utf-8")
