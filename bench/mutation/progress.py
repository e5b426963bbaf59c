"""Store the progress of a campaign in a file, line by line, so that the next run resumes where one was ended."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from egraph.rule import MergeRule, Rule
from verify.fingerprint import rule_key, verifier_key


def campaign_key(rules: Sequence[Rule | MergeRule], count: int, seed: int, cases: int) -> str:
    """Return the hash of all that a campaign's results depend on: with other rules, or another prover, it starts over."""
    parts = (verifier_key(), *map(rule_key, rules), count, seed, cases)
    return hashlib.blake2b("\n".join(map(str, parts)).encode(), digest_size=16).hexdigest()


@dataclass
class Progress:
    """The rules whose mutants are chosen and the mutants that are judged, by number, and the processor time that took."""

    key: str = ""
    path: Path | None = None
    chosen: dict[int, dict[str, Any]] = field(default_factory=dict)
    judged: dict[int, dict[str, Any]] = field(default_factory=dict)
    seconds: float = 0.0

    @staticmethod
    def read(path: Path, key: str) -> Progress:
        """Return the progress of a campaign from a file; an incomplete last line is ignored."""
        progress = Progress(key, path)
        for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
            try:
                step = json.loads(line)
                if step["campaign"] == key:
                    progress._add(step)
            except (ValueError, KeyError, TypeError):
                continue
        return progress

    def _add(self, step: Mapping[str, Any]) -> None:
        self.chosen |= {int(number): each for number, each in step["chosen"].items()}
        self.judged |= {int(number): each for number, each in step["judged"].items()}
        self.seconds += step["seconds"]

    def add(self, seconds: float, *, chosen: Mapping[int, Any] | None = None, judged: Mapping[int, Any] | None = None) -> None:
        """Record a step, also in the file if there is one."""
        step = {"campaign": self.key, "chosen": dict(chosen or {}), "judged": dict(judged or {}), "seconds": round(seconds, 2)}
        self._add(step)
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(step) + "\n")
