"""Kernels that were measured and may not be used: their result is wrong, or they are slow references, failed or hung."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from egraph.optimize.outcome import REFUSALS, Kind, Refused
from egraph.tensor import Candidate
from lower.cost.model import CostModel
from runtime.judge import ONLY_REFERENCE


def refused(model: CostModel, candidates: Mapping[int, Iterable[Candidate]]) -> tuple[Refused, ...]:
    """Return the distinct candidates that the database knows to be unusable, the wrong ones first."""
    found: dict[tuple[str, str], Refused] = {}
    for options in candidates.values():
        for one in options:
            record = model.record(one)
            if record is None or record.status == "ok":
                continue
            kind: Kind = "slow" if ONLY_REFERENCE in record.message else record.status
            key = model.key(one)
            found[key] = Refused(kind, one.implementation.text, key[0], record.message)
    order = list(REFUSALS)
    return tuple(sorted(found.values(), key=lambda r: (order.index(r.kind), r.implementation, r.fragment)))
