"""Notice programs that take another time than their kernels predict, and find the kernels that are the reason.

A kernel is timed alone, on random data. Inside a program it may meet other data (subnormal numbers take a hundred times as long), or
lines of the cache that another core has. And what a record says of it may have been measured while other processes ran. So where a
program takes much longer or shorter than predicted, its kernels are timed inside of it, twice, on the data that programs are timed on,
and those that are off most are timed alone again, between the two:

* no record, the estimate was wrong: what it takes alone is filed, for all models;
* alone quicker than recorded: others ran when it was measured. The record is replaced, since other processes only ever slow a kernel;
* alone slower than recorded, or inside not the same twice: others run now, so nothing is believed, nor filed;
* alone as recorded, inside another time both times: that is what it costs *in place*, filed for this model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from egraph.optimize.measuring import Measurer
from egraph.policy import PredictionPolicy
from egraph.tensor import Candidate, Kernel, Program
from lower.compile import CompileOptions, plan_program
from lower.cost.model import CostModel, KernelKey
from runtime import Session

Verdict: TypeAlias = Literal["in place", "recorded", "estimated", "busy", "untried"]


@dataclass(frozen=True)
class AtFault:
    """A kernel that took another time inside a program than its cost says."""

    candidate: Candidate
    predicted_us: float
    in_place_us: float
    alone_us: float
    """What it takes alone now; infinite where that is not known."""
    verdict: Verdict
    launches: int = 1

    @property
    def is_filed(self) -> bool:
        """Return whether the kernel costs something else from now on."""
        return self.verdict in ("in place", "recorded", "estimated")

    def __str__(self) -> str:
        reason = {
            "in place": "costs that inside this model's programs",
            "recorded": "was measured while other processes ran",
            "estimated": "had been estimated, not measured",
            "busy": "is not believed: other processes run now",
            "untried": "could not be timed alone",
        }[self.verdict]
        alone = f", {self.alone_us:.0f} us alone" if self.alone_us < math.inf else ""
        often = f" ({self.launches} times)" if self.launches > 1 else ""
        return f"{self.candidate.implementation}{often}: {self.in_place_us:.0f} us, not {self.predicted_us:.0f}{alone}; {reason}"


def is_mispredicted(measured_us: float, predicted_us: float, factor: float = PredictionPolicy.factor) -> bool:
    """Return whether a time is so far from what was predicted that the reason is looked for."""
    return max(measured_us, predicted_us) > factor * min(measured_us, predicted_us)


def times_in_place(
    session: Session, program: Program, options: CompileOptions, runs: int = PredictionPolicy.runs
) -> list[tuple[tuple[Kernel, ...], float]]:
    """Return the kernels of each step of a program and the microseconds that it takes, on the inputs of the last run."""
    _, writer = plan_program(program, options)
    steps = session.profile(runs)
    return [(kernels, time_us) for kernels, (_, time_us) in zip(writer.kernels, steps, strict=True)]


def at_fault(
    program: Program,
    place: str,
    feeds: Mapping[str, Any],
    model: CostModel,
    measurer: Measurer,
    time_left: Callable[[], float],
    policy: PredictionPolicy = PredictionPolicy(),
) -> tuple[AtFault, ...]:
    """Return the kernels that are the reason why the program compiled to ``place`` takes another time; what is sure is filed."""
    options = measurer.options
    with Session(place, threads=options.threads) as session:
        session.run(None, feeds)
        first = times_in_place(session, program, options, policy.runs)
        suspects = _suspects(first, model, policy)
        alone = measurer.measure_again(model, [one for one, _ in suspects.values()], time_left)
        session.run(None, feeds)
        second = _by_kernel(times_in_place(session, program, options, policy.runs), model)
    found = []
    for key, (one, times) in suspects.items():
        again_us = sum(second[key][1]) / len(second[key][1])
        in_place_us, predicted_us = min(sum(times) / len(times), again_us), model.cost_us(one)
        record, earlier = alone.get(key), model.record(one)
        alone_us = record.median_us if record is not None and record.median_us is not None else math.inf
        recorded_us = earlier.median_us if earlier is not None and earlier.median_us is not None else math.inf
        is_steady = not is_mispredicted(sum(times) / len(times), again_us, policy.factor)
        verdict: Verdict = "in place"
        if record is None or record.median_us is None:
            verdict = "untried"
        elif policy.factor * alone_us < recorded_us:
            verdict = "recorded" if earlier is not None else "estimated"
            model.file(record)
        elif in_place_us > predicted_us and (alone_us > policy.factor * recorded_us or not is_steady):
            verdict = "busy"
        else:
            model.file_in_place(one, (sum(times) / len(times), again_us))
        found.append(AtFault(one, predicted_us, in_place_us, alone_us, verdict, len(times)))
    return tuple(found)


def _by_kernel(rows: Sequence[tuple[tuple[Kernel, ...], float]], model: CostModel) -> dict[KernelKey, tuple[Candidate, list[float]]]:
    """Return the times of each distinct kernel that is a step of its own."""
    found: dict[KernelKey, tuple[Candidate, list[float]]] = {}
    for kernels, time_us in rows:
        if len(kernels) == 1 and not (kernels[0].implementation.is_free or kernels[0].implementation.is_opaque):
            one = Candidate(kernels[0].fragment, (), (), kernels[0].implementation)
            found.setdefault(model.key(one), (one, []))[1].append(time_us)
    return found


def _suspects(
    rows: Sequence[tuple[tuple[Kernel, ...], float]], model: CostModel, policy: PredictionPolicy
) -> dict[KernelKey, tuple[Candidate, list[float]]]:
    """Return the kernels whose times add most to the difference between what a program takes and what was predicted."""
    total_us = sum(time_us for _, time_us in rows)
    kernels = _by_kernel(rows, model)
    off = {key: abs(sum(times) - len(times) * model.cost_us(one)) for key, (one, times) in kernels.items()}

    def is_off(key: KernelKey) -> bool:
        one, times = kernels[key]
        return off[key] > policy.least_share * total_us and is_mispredicted(sum(times) / len(times), model.cost_us(one), policy.factor)

    chosen = sorted(filter(is_off, kernels), key=lambda key: (-off[key], key))[: policy.kernels]
    return {key: kernels[key] for key in chosen}
