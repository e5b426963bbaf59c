"""Decide what runs sizes between planned ones: padded to the larger one where that is proved and pays, else to onnxruntime."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from egraph.errors import EinsatError
from egraph.onnx import importer
from egraph.optimize.options import Options
from egraph.optimize.outcome import Outcome
from egraph.optimize.padding import Padding
from egraph.optimize.progress import Progress
from egraph.optimize.size_plan import SizePlan, point_text
from egraph.tensor import Graph
from runtime.sizes import Padded

PROOF_SHARE = 0.05
"""Part of the budget that is kept for proofs that sizes between may be padded; sizes that it does not suffice for are not."""


@dataclass(frozen=True)
class Gap:
    """Neighbouring sizes between two planned ones that go the same way: to the larger one, ``padded``, or to onnxruntime.

    ``point`` is the larger planned one, and the gap is in its ``size``: a position, as in ``Padded``.
    """

    names: tuple[str, ...]
    size: int
    low: int
    high: int
    point: tuple[int, ...]
    why: str
    padded: Padded | None = None

    @property
    def middle(self) -> dict[str, int]:
        return {**self._large, self.names[self.size]: (self.low + self.high) // 2}

    @property
    def _large(self) -> dict[str, int]:
        return dict(zip(self.names, self.point, strict=True))

    def describe(self) -> dict[str, str]:
        """Return which sizes these are, what runs them, and why, in words."""
        numbers = f"{self.low}..{self.high}" if self.low < self.high else str(self.low)
        sizes = ",".join(f"{n}={numbers if i == self.size else self.point[i]}" for i, n in enumerate(self.names))
        return {"sizes": sizes, "runs": point_text(self._large) if self.padded else ONNXRUNTIME, "why": self.why}


ONNXRUNTIME = "onnxruntime"
MOST_PROOFS = 64
"""Sizes below a planned one that are proved one by one, at most, so that the same command pads the same sizes unless time is short."""
SLOWER = "the program for {} takes longer than onnxruntime at these sizes, by its times at the planned ones"


def find_gaps(
    plan: SizePlan, points: Sequence[Mapping[str, int]], outcomes: Mapping[str, Outcome], options: Options, progress: Progress
) -> tuple[Gap, ...]:
    """Decide what runs each size between neighbouring planned ones."""
    ends_seconds = progress.spent_seconds + PROOF_SHARE * options.budget_seconds
    names = tuple(varied.name for varied in plan.varied)
    prover = _Prover(plan, options.model, lambda: progress.spent_seconds < ends_seconds)
    gaps: list[Gap] = []
    for size, name in enumerate(names):
        lines: dict[tuple[int, ...], list[Mapping[str, int]]] = {}
        for point in points:
            lines.setdefault(tuple(number for other, number in point.items() if other != name), []).append(point)
        for line in lines.values():
            for low, high in pairwise(line):
                if high[name] - low[name] > 1:
                    gap = Gap(names, size, low[name] + 1, high[name] - 1, tuple(high.values()), "")
                    gaps += _ways(gap, low, high, outcomes, prover)
                    progress.update(f"{gaps[-1].describe()['sizes']}: {gaps[-1].describe()['runs']}")
    return tuple(gaps)


def _ways(
    gap: Gap, low: Mapping[str, int], high: Mapping[str, int], outcomes: Mapping[str, Outcome], prover: _Prover
) -> list[Gap]:
    """Return the parts of a gap, the padded one last: it is next to the larger planned size."""
    large = outcomes[point_text(high)]
    if large.status == "unchanged":
        return [replace(gap, why=f"at {point_text(high)}, no program measured faster")]
    least = _least_paying(gap, outcomes[point_text(low)], large)
    if least > gap.high:
        return [replace(gap, why=SLOWER.format(point_text(high)))]
    first, outputs, refusal = prover.proved(gap, least, high)
    padded = Padded(gap.size, first, gap.high, gap.point, outputs)
    parts = [
        replace(gap, high=least - 1, why=SLOWER.format(point_text(high))),
        replace(gap, low=least, high=first - 1, why=refusal),
        replace(gap, low=first, padded=padded, why="proved: no row that is kept reads an added one"),
    ]
    return [part for part in parts if part.low <= part.high]


def _least_paying(gap: Gap, small: Outcome, large: Outcome) -> int:
    """Return from which size on the larger program takes less than onnxruntime, whose times between are taken from both ends."""
    times = (small.latency_us["onnxruntime"], large.latency_us["onnxruntime"], large.latency_us["optimized"])
    if any(time_us is None for time_us in times):
        return gap.low
    low_us, high_us, program_us = (time_us or 0.0 for time_us in times)
    count = gap.high - gap.low + 2
    paying = (gap.low + n - 1 for n in range(1, count) if program_us < low_us + (high_us - low_us) * n / count)
    return next(paying, gap.high + 1)


@dataclass
class _Prover:
    """Proves sizes one by one, from the largest down, while there is time."""

    plan: SizePlan
    model: Path
    goes_on: Callable[[], bool]
    padding: Padding = field(default_factory=Padding)

    def proved(self, gap: Gap, least: int, high: Mapping[str, int]) -> tuple[int, tuple[tuple[str, int], ...], str]:
        """Return the first of the proved sizes at the end of a gap, the axes of outputs that have the size, and why no more are."""
        large: Graph | None = None
        name, outputs = gap.names[gap.size], None
        for number in range(gap.high, least - 1, -1):
            if not self.goes_on():
                return number + 1, outputs or (), "not proved to be right when padded: no time was left for proofs"
            if gap.high - number >= MOST_PROOFS:
                return number + 1, outputs or (), f"not proved to be right when padded: {MOST_PROOFS} sizes next to a planned one are"
            try:
                large = large or self._graph(high)
                small = self._graph({**high, name: number})
            except EinsatError as error:
                return number + 1, outputs or (), f"the model cannot be read at {name}={number}: {error.what}"
            refusal = self.padding.refusal(small, large)
            axes = _axes_of(small, large, number, high[name])
            if refusal or axes is None or outputs not in (None, axes):
                return number + 1, outputs or (), f"padding is not proved to be right: {refusal or 'the size of an output is another one'}"
            outputs = axes
        return least, outputs or (), ""

    def _graph(self, point: Mapping[str, int]) -> Graph:
        return importer.load(self.model, shapes=self.plan.shapes(point)).graph


def _axes_of(small: Graph, large: Graph, number: int, planned: int) -> tuple[tuple[str, int], ...] | None:
    """Return the axes of outputs that have the size that varies, None where one differs that has another size."""
    axes = []
    for (name, small_output), (_, large_output) in zip(small.outputs, large.outputs, strict=True):
        for axis, sizes in enumerate(zip(small_output.type.shape or (), large_output.type.shape or (), strict=True)):
            if sizes[0] != sizes[1]:
                if sizes != (number, planned):
                    return None
                axes.append((name, axis))
    return tuple(axes)
