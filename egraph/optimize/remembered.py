"""Keep what a search found within its budget, so that the same search again measures and extracts nothing.

Choices are kept by their place among the candidates, which the same model, rules and options lay in the same order;
a digest of the chosen kernels notices where that is not so.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from egraph import __version__
from egraph.cost import CostModel
from egraph.ir import Candidate, Graph, Selection
from egraph.optimize.options import Options
from egraph.rule import MergeRule, Rule
from runtime.profile import Database, Record

SEARCHED = "search"
ELSEWHERE = ("budget_seconds", "checks", "tolerance")
"""Options that do not make another search: a larger budget continues the same one."""


@dataclass(frozen=True)
class Earlier:
    """A search that an earlier run made for the same model, rules and options, on the same device."""

    iterations: int
    unmeasured: int
    """Kernels that it chose and had no time to measure."""
    budget_seconds: float
    choices: str

    def told(self) -> str:
        """Return one line for people."""
        rest = f", {self.unmeasured} of the chosen kernels unmeasured" if self.unmeasured else ""
        return f"the search of an earlier run is used ({self.budget_seconds:g} s budget{rest}); a larger --budget or --again continues it"


def search_key(graph: Graph, rules: Sequence[Rule | MergeRule], options: Options, more: Sequence[str] = ()) -> str:
    """Return what a search is filed under: the same model, rules, options and whatever ``more`` counts need no measuring again."""
    parts = [f"{name}={node.digest}" for name, node in graph.outputs] + [f"{rule.name}|{rule.text}" for rule in rules]
    stored = {name: value for name, value in options.stored().items() if name not in ELSEWHERE}
    parts += [__version__, repr(sorted(stored.items())), *more]
    return f"search {hashlib.sha256(chr(10).join(parts).encode()).hexdigest()[:32]}"


def read_search(database: Database, device: str, key: str) -> Earlier | None:
    """Return the search that is filed under a key, None where there is none."""
    record = database.get(device, key, SEARCHED)
    if record is None or len(record.samples_us) != 3:
        return None
    iterations, unmeasured, budget_seconds = record.samples_us
    return Earlier(int(iterations), int(unmeasured), budget_seconds, record.message)


def write_search(database: Database, device: str, key: str, found: Earlier) -> None:
    """File a search; one of a smaller budget is replaced."""
    counts = (float(found.iterations), float(found.unmeasured), found.budget_seconds)
    database.put(Record(device, key, SEARCHED, "ok", counts, found.choices))


def selections_text(selections: Sequence[Selection], candidates: Mapping[int, Sequence[Candidate]], model: CostModel) -> str:
    """Return selections as text for the profile database."""
    kept = [
        {
            "places": [[number, _place(one, candidates[number])] for number, one in selection.chosen.items()],
            "digest": _digest(selection.chosen, model),
            "optimal": selection.optimal,
            "method": selection.method,
            "seconds": selection.seconds,
        }
        for selection in selections
    ]
    return json.dumps(kept, separators=(",", ":"))


def read_selections(text: str, candidates: Mapping[int, Sequence[Candidate]], model: CostModel) -> tuple[Selection, ...]:
    """Return the selections of a text; none where it does not fit the candidates, or a kernel has proved wrong since."""
    try:
        kept = json.loads(text) if text else []
        found = []
        for entry in kept:
            chosen = {number: candidates[number][place] for number, place in entry["places"]}
            if _digest(chosen, model) != entry["digest"] or any(map(model.is_wrong, chosen.values())):
                return ()
            priced = {number: replace(one, cost_us=model.cost_us(one)) for number, one in chosen.items()}
            cost_us = sum(one.cost_us for one in priced.values())
            found.append(Selection(priced, cost_us, entry["optimal"], entry["method"], entry["seconds"]))
    except (KeyError, IndexError, TypeError, ValueError):
        return ()  # written by another version: extraction tells it anew
    return tuple(found)


def _place(one: Candidate, options: Sequence[Candidate]) -> int:
    for place, option in enumerate(options):
        if (option.fragment, option.operands, option.implementation) == (one.fragment, one.operands, one.implementation):
            return place
    raise KeyError(f"{one.implementation} is not among the candidates")


def _digest(chosen: Mapping[int, Candidate], model: CostModel) -> str:
    parts = [f"{number}|{model.key(one)}|{one.operands}" for number, one in chosen.items()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
