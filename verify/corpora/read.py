"""Read a corpus file: which kind it is follows from what it holds."""

from __future__ import annotations

import json
from pathlib import Path

from egraph.errors import RuleError
from verify.corpora.entries import Entry
from verify.corpora.rejected import read_rejected
from verify.corpora.taso import read_taso, read_tensat
from verify.corpora.xla import read_xla

SECTIONS = (
    "single_rules", "hand_single_rules", "multi_rules", "multi_rules_cleaned", "hand_multi_rules", "verifier_axioms", "full_taso_equations",
)  # fmt: skip


def read_corpus(path: Path) -> tuple[Entry, ...]:
    """Return the entries of a file; raises ``RuleError`` where it is not a corpus that is known."""
    if not path.is_file():
        raise RuleError(f"corpus {path} does not exist", fix="check the path")
    try:
        data = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise RuleError(f"corpus {path} is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise RuleError(f"corpus {path} is not a JSON object", fix="give one of the files that docs/proofs.md names")
    if any(section in data for section in SECTIONS):
        return tuple(read_tensat(data))
    if isinstance(data.get("items"), list):
        return tuple(read_rejected(data))
    rules = data.get("rules")
    if isinstance(rules, list) and rules and "src" in rules[0] and "equations" in rules[0]:
        return tuple(read_taso(data))
    if isinstance(rules, list) and rules and "lhs" in rules[0] and "status" in rules[0]:
        return tuple(read_xla(data))
    raise RuleError(f"corpus {path} is of an unknown kind", fix="it needs decoded TASO substitutions, or TENSAT's sections")
