"""Keep what a finished search chose, so that the same search again need not extract: extraction takes longer than all else.

Choices are kept by their place among the candidates, which the same model, rules and options lay in the same order;
a digest of the chosen kernels notices where that is not so.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from egraph.cost import CostModel
from egraph.ir import Candidate, Selection


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
