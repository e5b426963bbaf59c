"""What runs file in the profile database: a repeated search measures and extracts nothing, a check compares as many inputs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import cast

from egraph import __version__
from egraph.optimize.options import Options
from egraph.optimize.outcome import Kind, Refused
from egraph.rule import MergeRule, Rule
from egraph.tensor import Graph
from runtime.profile import CheckRow, Database, SearchRow

BUDGETS = ("budget_seconds", "checks")
"""Options that do not make another search: a larger budget continues the same one."""
ELSEWHERE = (*BUDGETS, "tolerance", "inputs")
"""The tolerance decides only which derivations are used, and those are named apart; inputs, what is timed after the search."""


@dataclass(frozen=True)
class Earlier:
    """A search that an earlier run made for the same model, rules and options, on the same device."""

    iterations: int
    unmeasured: int
    """How many of the chosen kernels it had no time to measure."""
    budget_seconds: float
    """What it was given; 0 where none of its programs was timed, so that the same command searches on."""
    choices: str
    """The chosen kernels, as texts of :mod:`egraph.tensor.text`."""
    refused: tuple[Refused, ...] = ()
    looks: tuple[int, ...] = ()
    """Where time ended the saturation, see :class:`egraph.engine.saturate.Saturation`."""

    def describe(self) -> str:
        """Return one line for people."""
        unmeasured = f", {self.unmeasured} of the chosen kernels unmeasured" if self.unmeasured else ""
        effort = f"{self.budget_seconds:g} s budget{unmeasured}" if self.budget_seconds else f"its programs were not timed{unmeasured}"
        return f"the search of an earlier run is used ({effort}); a larger --budget or --again continues it"


def search_key(graph: Graph, rules: Sequence[Rule | MergeRule], options: Options, more: Sequence[str] = ()) -> str:
    """Return what a search is filed under: the same model, rules, options and whatever ``more`` counts need no measuring again."""
    parts = [f"{name}={node.digest}" for name, node in graph.outputs] + [f"{rule.name}|{rule.text}" for rule in rules]
    stored = {name: value for name, value in options.stored().items() if name not in ELSEWHERE}
    parts += [__version__, repr(sorted(stored.items())), *more]
    return f"{hashlib.sha256(chr(10).join(parts).encode()).hexdigest()[:32]}"


def read_search(database: Database, device: str, key: str) -> Earlier | None:
    """Return the search that is filed under a key, None where there is none."""
    row = database.find(SearchRow, device, key)
    if row is None or any(len(parts) != 4 for parts in row.refused):
        return None
    refused = tuple(Refused(cast(Kind, kind), *fields) for kind, *fields in row.refused)
    return Earlier(row.iterations, row.unmeasured, row.budget_seconds, row.choices, refused, row.looks)


def usable_search(database: Database, device: str, key: str, options: Options) -> Earlier | None:
    """Return the same search of an earlier run, unless this run is to search on."""
    earlier = read_search(database, device, key)
    searches_on = earlier and not options.frozen and (options.again or earlier.budget_seconds < options.budget_seconds)
    return None if searches_on else earlier


def write_search(database: Database, device: str, key: str, earlier: Earlier) -> None:
    """File a search; one of a smaller budget is replaced."""
    refused = tuple(astuple(row) for row in earlier.refused)
    counts = earlier.iterations, earlier.unmeasured, earlier.budget_seconds
    database.put(SearchRow(device, key, *counts, earlier.choices, refused, earlier.looks))


def read_checked(database: Database, device: str, model_digest: str) -> int | None:
    """Return on how many inputs a model's results were compared when there was no time for all; None where there was."""
    row = database.find(CheckRow, device, model_digest)
    return row.inputs if row is not None and row.inputs else None


def write_checked(database: Database, device: str, model_digest: str, inputs: int | None) -> None:
    """File on how many inputs a model's results were compared, None where on all: the same command again compares as many."""
    if inputs is not None or read_checked(database, device, model_digest) is not None:
        database.put(CheckRow(device, model_digest, inputs or 0))
