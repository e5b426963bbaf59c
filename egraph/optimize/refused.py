"""Kernels that were measured and may not be used: their result is wrong, or they are slow references, failed or hung."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

from egraph.cost import CostModel
from egraph.ir import Candidate
from egraph.optimize.outcome import Refused
from runtime.judge import ONLY_REFERENCE

Kind: TypeAlias = Literal["wrong", "slow", "failed", "hung"]
TOLD: Mapping[Kind, str] = {
    "wrong": "wrong", "slow": "slow reference implementations", "failed": "failed", "hung": "hung"
}  # fmt: skip


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
            found[key] = Refused(kind, one.implementation, key[0], record.message)
    order = list(TOLD)
    return tuple(sorted(found.values(), key=lambda r: (order.index(r.kind), r.implementation, r.fragment)))


def summary(rows: Sequence[Refused]) -> str:
    """Return ``kernels refused: 1 wrong, 4 slow reference implementations``; empty when there are none."""
    counts = Counter(row.kind for row in rows)
    parts = [f"{counts[kind]} {told}" for kind, told in TOLD.items() if counts[kind]]
    return f"kernels refused: {', '.join(parts)}" if parts else ""
