"""Folders of the project that tests read."""

from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
GOLDEN = TESTS / "golden"
CORPORA = TESTS / "data" / "corpora"
