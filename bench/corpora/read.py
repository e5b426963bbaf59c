"""Read a corpus file; its kind follows from its content."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.corpora.entries import Entry
from bench.corpora.rejected import read_rejected
from bench.corpora.taso import read_taso, read_tensat
from bench.corpora.xla import read_xla
from egraph.errors import RuleError

SECTIONS = (
    "single_rules", "hand_single_rules", "multi_rules", "multi_rules_cleaned", "hand_multi_rules", "verifier_axioms", "full_taso_equations",
)  # fmt: skip
KNOWN = "give TASO's substitutions decoded to JSON, TENSAT's sections, rules of XLA's simplifier, or a list of rewrites to reject"


def read_corpus(path: Path) -> tuple[Entry, ...]:
    """Return the entries of a file; raises ``RuleError`` if it is not a known kind of corpus."""
    if not path.is_file():
        raise RuleError(f"corpus {path} does not exist", fix="check the path")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # also bytes that are not text
        raise RuleError(f"corpus {path} is not JSON: {error}", fix=KNOWN) from error
    if not isinstance(data, dict):
        raise RuleError(f"corpus {path} is not a JSON object", fix=KNOWN)
    try:
        entries = _entries(data)
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise RuleError(f"corpus {path} has an entry that cannot be read: {type(error).__name__}: {error}", fix=KNOWN) from error
    if entries is None:
        raise RuleError(f"corpus {path} is of an unknown kind", fix=KNOWN)
    return entries


def _entries(data: dict[str, Any]) -> tuple[Entry, ...] | None:
    """Return the entries; None if the kind is not known."""
    if any(section in data for section in SECTIONS):
        return tuple(read_tensat(data))
    if isinstance(data.get("items"), list):
        return tuple(read_rejected(data))
    rules = data.get("rules")
    first = rules[0] if isinstance(rules, list) and rules and isinstance(rules[0], dict) else {}
    if {"src", "equations"} <= first.keys():
        return tuple(read_taso(data))
    if {"lhs", "status"} <= first.keys():
        return tuple(read_xla(data))
    return None
