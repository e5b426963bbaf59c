"""One search with its race: the programs that took part, and which is the fastest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from egraph.errors import ModelError
from egraph.optimize.folding import Folder
from egraph.optimize.race import Contender, Race
from egraph.optimize.search import Search
from egraph.tensor import Program

ORIGINAL, PLAIN = "onnxruntime", "unoptimized"
"""Two names of contenders: the model as it was given, and its program without rules and fusion."""


@dataclass(frozen=True)
class Entry:
    """A program that takes part in the race; its contender's path is where it is compiled to."""

    contender: Contender
    program: Program

    def folded(self, folder: Folder) -> Entry:
        """Return the entry with what its program derives from weights computed: what can be compiled and saved."""
        return replace(self, program=folder.fold(self.program))


@dataclass(frozen=True)
class Trial:
    """One search with its race: what was found, what was timed, and what is best (None: onnxruntime on the original)."""

    found: Search
    plain: Program
    entries: tuple[Entry, ...]
    raced: Race
    best: Entry | None
    search_key: str
    """What the search is filed under."""


def by_importance(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries, which begin with the plain program, in the order that they are compiled and timed in: the best first."""
    plain, *found = entries
    return [*found[:1], plain, *found[1:]]


def fastest(names: Sequence[str], raced: Race) -> str:
    """Return the name of the fastest contender: that of onnxruntime on the original model unless a program is faster."""
    if raced.timings[ORIGINAL].status != "ok":
        raise ModelError(f"onnxruntime cannot time the original model: {raced.timings[ORIGINAL].message}")
    best = min(names, key=raced.median_us, default=ORIGINAL)
    return best if raced.median_us(best) < raced.median_us(ORIGINAL) else ORIGINAL
