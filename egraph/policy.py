"""The tuning parameters of every stage: one frozen dataclass per stage, collected in one ``Policy``.

    --policy extract.share=0.1 --policy race.rounds=9        change two of them
    --policy help                                            list all, with units, defaults and reasons

A policy decides the results, so it is stored in an artefact's manifest and is part of the key under which a search is cached. Numbers that
follow from a format or from mathematics are not tuning parameters: they are defined where they are used.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from egraph.errors import EinsatError

T = TypeVar("T", int, float)


class PolicyError(EinsatError):
    """A setting names an unknown field of a policy, or gives a field a value outside its range."""


def tuned(default: T, unit: str, reason: str, *, least: float = 0.0, most: float = math.inf) -> T:
    """Return a field of a policy with its default, its unit and a description; values lie in ``least`` to ``most``."""
    described: Any = field(default=default, metadata={"unit": unit, "reason": reason, "least": least, "most": most})
    value: T = described
    return value


@dataclass(frozen=True)
class SaturationPolicy:
    """Growing the e-graph by rules, and then by derivations."""

    share: float = tuned(
        0.2,
        "fraction of the budget",
        "Time limit for growing the e-graph. Rules find little once they have settled, so the rest is better spent on measuring.",
        most=1,
    )
    iterations: int = tuned(
        40, "iterations", "Maximum number of iterations. If the e-graph still grows then, it gains mostly permutations.", least=1
    )
    matches: int = tuned(
        2_000, "matches", "Maximum number of matches of one rule used per iteration. The rest wait, so that no rule starves the others.",
        least=1,
    )  # fmt: skip
    largest_join: int = tuned(
        1_000_000,
        "matches",
        "A rule with more matches is skipped in that iteration, because egglog cannot be stopped inside a query.",
        least=1,
    )
    largest_merge: int = tuned(
        32, "operators", "Maximum number of operators merged into one. It bounds the compile time and keeps the operands readable.", least=2
    )
    repeats: float = tuned(
        0.2,
        "fraction of the operators",
        "Equal blocks of a model are searched once if that saves at least this many operators. Nothing is fused across block borders.",
        most=1,
    )
    rules_share: float = tuned(
        0.6, "fraction of --max-nodes", "Maximum size of the e-graph before derivations run. The rest is kept for derivations.", most=1
    )
    rules_growth: float = tuned(
        4.0,
        "times the model's operators",
        "Maximum size of the e-graph that rules make. In 58 of 63 models the rules settle earlier. The others have long concatenations or "
        "factors that commute: growing their e-graphs and laying candidates took two thirds of the budget, and few kernels were measured.",
    )
    rules_least_growth: int = tuned(
        6_000, "e-nodes", "Size that rules may always reach, because saturation.rules_growth would limit small models too much."
    )
    derivations_share: float = tuned(
        0.4, "fraction of the stage's time", "Minimum time for derivations, even if rules have used all of the time.", most=1
    )
    derivations_growth: float = tuned(
        4.0,
        "times the e-nodes",
        "Maximum size of the e-graph after derivations, relative to its size before them. Programs with many views could be rearranged "
        "without end, and useful programs are found early.",
        least=1,
    )
    derivations_least_growth: int = tuned(
        2_000, "e-nodes", "Added to the limit of saturation.derivations_growth, so that derivations have room in a small e-graph."
    )
    varied_growth: float = tuned(
        1.25,
        "times the e-nodes",
        "Growth by rules that is always allowed after derivations, because derived programs may need a rule, such as one for layouts. More "
        "is allowed if there is time (measure.derived_laid_share).",
        least=1,
    )
    derivation_rounds: int = tuned(
        2,
        "rounds",
        "Maximum number of rounds. Operators inside a derived program (convolutions of phases) may have derivations of their own.",
        least=1,
    )
    derived_programs: int = tuned(16, "programs", "Maximum number of programs that derivations add to one e-class.")
    derived_regions: int = tuned(
        12, "regions", "Maximum number of regions offered to one rule for regions, the costliest first. Each is searched for a second."
    )
    derived_groups: int = tuned(
        32, "groups", "Maximum number of groups offered to one rule for groups of operators: the first ones of the program."
    )


@dataclass(frozen=True)
class CandidatesPolicy:
    """Laying candidates: listing the generated kernels that can compute each value of the e-graph."""

    operators: int = tuned(
        24, "operators", "Maximum number of operators fused into one kernel. Larger kernels take long to compile and gain no more.", least=1
    )
    operand_sets: int = tuned(
        8, "sets of tensors", "Maximum number of operand sets from which one value is computed: those with the fewest bytes.", least=1
    )
    operations_a_byte: float = tuned(
        4.0, "operations per byte", "Products up to this limit are memory-bound, so generated loops may compute them (EinNet, OSDI 2023)."
    )


@dataclass(frozen=True)
class ExtractPolicy:
    """Selecting programs from the e-graph."""

    share: float = tuned(
        0.04, "fraction of the budget", "Time for one exact extraction, which is repeated after every round of measuring.", most=1
    )
    best_share: float = tuned(0.6, "fraction of an extraction's time", "Time of the solver for the best program.", most=1)
    variant_share: float = tuned(
        0.4,
        "fraction of an extraction's time",
        "Time of the solver for the best program in which another costly kernel is chosen.",
        most=1,
    )
    patience: float = tuned(
        5.0, "times an extraction's time", "No more variants are extracted after this time: a safety limit for loaded machines.", least=1
    )
    solver_units: float = tuned(
        0.25,
        "units per second",
        "Speed of the solver's deterministic clock on a machine of this kind, rounded down. It makes limits independent of the load.",
        least=1e-3,
    )
    variant_slack: float = tuned(
        1.3, "times the greedy cost", "Maximum cost of a program that has to differ from the best program.", least=1
    )
    worth_timing: float = tuned(1.6, "times the best cost", "Variants that cost more than this are not timed.", least=1)
    meaningful: float = tuned(
        0.02,
        "fraction of a program's time",
        "Kernels that take at least this much are costly: one variant has to do without one of the best program's costly kernels.",
        most=1,
    )
    spare: float = tuned(
        1.5,
        "times the cheaper cost",
        "A candidate with the operands of a cheaper one is kept up to this cost, because estimates can be wrong.",
        least=1,
    )
    moves: int = tuned(
        50_000, "moves", "Maximum number of local moves tried: a count, so that the result does not depend on the machine's load."
    )
    exact_over_greedy: float = tuned(
        10.0, "times a greedy extraction", "Assumed time of an exact extraction until one has been made.", least=1
    )
    variants_over_greedy: float = tuned(
        25.0, "times a greedy extraction", "Assumed time of an extraction of several programs until one has been made.", least=1
    )
    caution: float = tuned(
        4.0,
        "times the estimate",
        "Safety factor on estimated times in the last extraction, when no time is left to measure the kernels.",
        least=1,
    )


@dataclass(frozen=True)
class CostPolicy:
    """Estimating kernels that have no measurement."""

    hopeless: float = tuned(
        1.5,
        "times a rival's time",
        "A library kernel with a larger estimate is not measured in advance if a rival that computes the same value has been measured.",
        least=1,
    )
    enough_alike: int = tuned(
        3, "kernels", "Minimum number of similar measured kernels, for example of about the same size, from which others are estimated.",
        least=1,
    )  # fmt: skip
    optimism: float = tuned(
        0.6,
        "fraction of the prior's estimate",
        "Estimates of unmeasured kernels are lowered to this, but not below the roofline: a kernel that might be faster has to be tried.",
        most=1,
    )
    library_caution: int = tuned(
        3,
        "power of extract.caution",
        "Safety factor for kernels of a library or of onnxruntime. Some are reference implementations, thousands of times slower.",
    )
    opaque: float = tuned(
        4.0,
        "times the estimate",
        "Factor for a kernel that onnxruntime runs as a model of its own. For example, a convolution of bytes took 50 times its roofline.",
        least=1,
    )
    least_of_relative: float = tuned(
        0.5,
        "fraction of a relative's time",
        "Lower bound of an estimate that is based on a measured kernel of the same family, for kernels that move far fewer bytes.",
        most=1,
    )


@dataclass(frozen=True)
class MeasurePolicy:
    """Measuring kernels while programs are chosen."""

    share: float = tuned(
        0.8,
        "fraction of the budget",
        "Measuring ends when this much is spent, or earlier. The rest is for the race and the check.",
        most=1,
    )
    kept_share: float = tuned(
        0.6, "fraction of the budget", "Maximum time that measuring leaves to the race and the check if a model is slow.", most=1
    )
    laid_share: float = tuned(
        0.7,
        "fraction of the time for measuring",
        "Maximum time for laying candidates. Derived programs that need more are skipped, because few of their kernels would be measured.",
        most=1,
    )
    derived_laid_share: float = tuned(
        0.2,
        "fraction of the time for measuring",
        "After derivations, rules grow the e-graph until laying it and choosing from it are predicted to take this much. A network's "
        "programs from an e-graph of 2,000 e-nodes were as fast as from 5,100, which took 4 s longer.",
        most=1,
    )
    laid_least_seconds: float = tuned(
        1.0, "seconds", "Laying candidates is never stopped before this time, so small e-graphs are always laid completely."
    )
    derived_share: float = tuned(
        0.4,
        "fraction of the time for measuring",
        "Time kept for the kernels of derived programs while the kernels of programs by rules alone are measured.",
        most=1,
    )
    family_share: float = tuned(
        0.5, "fraction of the time left", "Maximum time for measuring one kernel of each family of library kernels.", most=1
    )
    family_rounds: int = tuned(
        3,
        "rounds",
        "Maximum number of rounds of measuring one kernel of each family. If it fails, another one of the family is tried.",
        least=1,
    )
    greedy_rounds: int = tuned(
        6, "extractions", "Maximum number of greedy extractions. After each, the kernels of the extracted program are measured.", least=1
    )
    exact_rounds: int = tuned(8, "extractions", "Maximum number of exact extractions of the best program.", least=1)
    library_rounds: int = tuned(
        4,
        "extractions",
        "Maximum number of repeated extractions after measuring has ended, as long as chosen library kernels prove too slow to be run.",
        least=1,
    )
    variant_rounds: int = tuned(
        3, "extractions", "Maximum number of exact extractions of all programs that are going to be timed.", least=1
    )
    stored_share: float = tuned(
        0.15, "fraction of the budget", "Maximum time for measuring kernels whose operands or results are stored rounded.", most=1
    )
    batch: int = tuned(
        32, "kernels", "Maximum number of kernels compiled together: starting the compiler costs as much as compiling several.", least=1
    )
    first_batch: int = tuned(
        4,
        "kernels",
        "Size of the first batch when a program to be timed is compiled. Each next batch is twice as large, at a known pace.",
        least=1,
    )
    kernel_seconds: float = tuned(
        0.05,
        "seconds",
        "Assumed compile time of a kernel of one operator until enough have been compiled: twice the mean on an AMD EPYC. One kernel in a "
        "hundred takes 3 s and would distort the mean of a few.",
    )
    compiled_ahead: int = tuned(
        8,
        "kernels per process",
        "Kernels compiled while the e-graph grows, between two checks whether compiling should continue.",
        least=1,
    )
    negligible: float = tuned(
        0.002,
        "fraction of a program's time",
        "A generated kernel that is estimated to take less, in all its uses together, is not measured.",
        most=1,
    )
    runs: int = tuned(4, "runs", "Minimum number of runs of one measurement, including those of the reference.", least=1)
    judged_bytes_s: float = tuned(
        5e8, "bytes per second", "Assumed lowest speed of drawing random operands and comparing results.", least=1
    )
    patience_seconds: float = tuned(5.0, "seconds", "Minimum time that the search waits for a kernel, however little time is left.")
    disappointment: float = tuned(
        2.0,
        "times the estimate",
        "Assumed time of a kernel that is queued for measuring, so that the next extraction asks for its rivals.",
        least=1,
    )


@dataclass(frozen=True)
class RacePolicy:
    """Timing whole programs against each other and against onnxruntime."""

    share: float = tuned(
        0.25,
        "fraction of the budget",
        "Time limit, once every contender has run a few times. If it is unclear whether the fastest program or the original wins, they "
        "race for as long again.",
        most=1,
    )
    rounds: int = tuned(40, "rounds", "Maximum number of rounds. A race ends earlier once its winner is known.", least=1)
    least_rounds: int = tuned(5, "rounds", "Minimum number of rounds, unless time is over.", least=1)
    confidence: float = tuned(
        0.995, "probability", "Confidence required to drop a slower contender, or to end a race early because a program is ahead.",
        least=0.5, most=1,
    )  # fmt: skip
    verdict: float = tuned(
        0.95, "probability", "Confidence required at the end of a race that a program is faster than the original, so that it is shipped.",
        least=0.5, most=1,
    )  # fmt: skip
    noise: float = tuned(
        0.08,
        "fraction of a contender's time",
        "Assumed error of one round: a few rounds that agree by chance prove little.",
    )
    margin: float = tuned(
        0.015,
        "fraction of the winner's time",
        "A race may end if no contender can be faster than the winner by more than this. Less is not worth more rounds.",
    )
    runs: int = tuned(3, "runs", "Minimum number of runs of each contender in a round.", least=1)
    settle_seconds: float = tuned(
        0.5,
        "seconds",
        "Maximum wait between turns, until the thread pool of the last contender stops spinning and leaves the cores free.",
    )
    turn_seconds: float = tuned(
        0.1, "seconds", "Time of one contender in a round, unless a few runs take longer. Many short rounds tell more than few long ones."
    )
    first_gap: float = tuned(
        3.0, "times the fastest", "A contender that takes longer than this in the first round is not timed again.", least=1
    )
    gap: float = tuned(
        1.3,
        "times the fastest",
        "From round race.gap_rounds on, a contender that took longer than this in every round is not timed again.",
        least=1,
    )
    gap_rounds: int = tuned(
        4,
        "rounds",
        "Rounds in which race.first_gap shrinks to race.gap. In only two rounds, bursts of load could slow a good program both times.",
        least=2,
    )
    memory_share: float = tuned(
        0.6, "fraction of the free memory", "Maximum memory of all contenders together. If they need more, only one is loaded at a time.",
        most=1,
    )  # fmt: skip
    arena_factor: float = tuned(
        3.0, "times a program's memory", "onnxruntime runs without its memory arena if this does not fit into race.memory_share.", least=1
    )
    patience_seconds: float = tuned(
        20.0,
        "seconds",
        "A contender that takes longer to answer is treated as hung. Its size and the time of a run extend this timeout.",
        least=1,
    )
    loaded_bytes_s: float = tuned(1e8, "bytes per second", "Assumed lowest speed at which a contender's memory is filled.", least=1)
    slow_run_seconds: float = tuned(
        0.5, "seconds", "A model whose run in onnxruntime takes this long is slow: one run of each contender is enough if time is short."
    )
    slower_than_original: float = tuned(
        20.0, "times onnxruntime", "A contender that takes longer than this plus race.patience_seconds is treated as hung.", least=1
    )
    contenders: int = tuned(
        2,
        "contenders",
        "Contenders for which time is always kept: the original and the most promising program. Others race if that takes little time.",
        least=2,
    )
    open_share: float = tuned(
        0.1, "fraction of the budget", "Maximum time that a search keeps for opening contenders beyond race.contenders.", most=1
    )
    runs_share: float = tuned(
        0.1, "fraction of the budget", "Maximum time that a search keeps for the minimum runs of all contenders.", most=1
    )


@dataclass(frozen=True)
class PredictionPolicy:
    """Examining programs whose time differs from what their kernels predict."""

    factor: float = tuned(
        1.3, "times the prediction", "A program or a kernel whose time is off by more than this factor is examined.", least=1
    )
    kernels: int = tuned(
        8, "kernels", "Maximum number of kernels timed alone again: those whose times add most to the difference.", least=1
    )
    least_share: float = tuned(
        0.02, "fraction of a program's time", "A kernel is examined only if its total time is off by more than this.", most=1
    )
    runs: int = tuned(10, "runs", "Number of runs in which the kernels are timed inside a program.", least=1)


@dataclass(frozen=True)
class CheckPolicy:
    """Rehearsing, checking and repairing programs. No field relaxes the check of the saved files: ``--tolerance`` is for that."""

    seconds: float = tuned(
        5.0, "seconds", "Time that a check may always take, however little is left. Less would weaken the check.", least=5.0
    )
    float64_seconds: float = tuned(
        5.0, "seconds", "Maximum time to compute one output in float64, which shows whether onnxruntime is the inexact one."
    )
    replaced: int = tuned(
        6, "inputs", "Maximum number of random inputs that are replaced because the model amplifies rounding too much on them.", most=6
    )
    attempts: int = tuned(
        3, "programs", "Maximum number of programs that may fail the check and be replaced by one without the faulty part."
    )
    margin: float = tuned(
        0.5,
        "fraction of the tolerance",
        "Maximum error of a program in a rehearsal, before it is compiled: kernels round in other ways than onnxruntime does.",
        most=1,
    )
    layer: float = tuned(
        1 / 64,
        "fraction of a derivation's error",
        "Error that one layer has on usual data. The whole error is that of models of many layers.",
        most=1,
    )
    tapped_bytes: int = tuned(1 << 30, "bytes", "Maximum memory for operands and results that are kept to see how large their values are.")
    bisections: int = tuned(
        3,
        "rounds",
        "Maximum number of rehearsals with bisection. They repeat because another inexact form may be chosen in place of a removed one.",
        least=1,
    )


@dataclass(frozen=True)
class BudgetPolicy:
    """Time of the budget that is kept for the steps after a search."""

    plan_seconds: float = tuned(
        0.0015, "seconds per kernel", "Time kept for planning the chosen program, its buffers and its steps: 3 s for 2,000 kernels."
    )


@dataclass(frozen=True)
class Policy:
    """The tuning parameters of all stages; benchmarks were measured with the defaults."""

    saturation: SaturationPolicy = SaturationPolicy()
    candidates: CandidatesPolicy = CandidatesPolicy()
    extract: ExtractPolicy = ExtractPolicy()
    cost: CostPolicy = CostPolicy()
    measure: MeasurePolicy = MeasurePolicy()
    race: RacePolicy = RacePolicy()
    prediction: PredictionPolicy = PredictionPolicy()
    check: CheckPolicy = CheckPolicy()
    budget: BudgetPolicy = BudgetPolicy()

    def changed(self, settings: Sequence[str]) -> Policy:
        """Return the policy with settings like ``extract.share=0.5``; raises PolicyError."""
        policy = self
        for text in settings:
            name, separator, value = text.partition("=")
            if not separator:
                raise PolicyError(f"--policy {text!r} is not STAGE.FIELD=VALUE", fix="for example --policy extract.share=0.1")
            policy = policy.with_value(name.strip(), value.strip())
        return policy

    def with_value(self, name: str, text: str) -> Policy:
        """Return the policy with one value, given as text; raises PolicyError."""
        tuning = {each.name: each for each in tunings(self)}.get(name)
        if tuning is None:
            names = [each.name for each in tunings(self)]
            close = difflib.get_close_matches(name, names, n=3, cutoff=0.4)
            meant = f"; did you mean {' or '.join(close)}?" if close else ""
            raise PolicyError(f"--policy {name}: there is no such field{meant}", fix=f"the fields are {', '.join(names)}")
        part = replace(getattr(self, tuning.stage), **{tuning.field: tuning.parsed(text)})
        return replace(self, **{tuning.stage: part})

    def stored(self) -> dict[str, Any]:
        """Return all values as JSON data."""
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class Tuning:
    """One field of a policy: its name with its stage, its value, unit, description and range."""

    name: str
    value: float
    unit: str
    reason: str
    least: float
    most: float

    @property
    def stage(self) -> str:
        return self.name.partition(".")[0]

    @property
    def field(self) -> str:
        return self.name.partition(".")[2]

    @property
    def text(self) -> str:
        """Return the value as text."""
        return str(self.value) if isinstance(self.value, int) else f"{self.value:g}"

    @property
    def range(self) -> str:
        """Return ``0 to 1``, or ``1 or more``."""
        return f"{self.least:g} or more" if self.most == math.inf else f"{self.least:g} to {self.most:g}"

    def parsed(self, text: str) -> float:
        """Parse a value of the type of the default; raises PolicyError if the text is not one in range."""
        kind = type(self.value)
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not self.least <= value <= self.most or math.isinf(value):
            expected = "a whole number" if kind is int else "a number"
            names = ", ".join(each.name for each in tunings(Policy()) if each.stage == self.stage)
            what = f"--policy {self.name}={text}: it must be {expected}, {self.range} ({self.unit}; the default is {self.text})"
            raise PolicyError(what, fix=f"--policy help lists all fields; of this stage: {names}")
        return value


def tunings(policy: Policy) -> Iterator[Tuning]:
    """Yield every field of every stage, in order."""
    for stage in dataclasses.fields(policy):
        part = getattr(policy, stage.name)
        for each in dataclasses.fields(part):
            metadata: Mapping[str, Any] = each.metadata
            name, value = f"{stage.name}.{each.name}", getattr(part, each.name)
            yield Tuning(name, value, metadata["unit"], metadata["reason"], metadata["least"], metadata["most"])


def changes(stored: Mapping[str, Mapping[str, float]]) -> str:
    """Return the settings in which a stored policy differs from the defaults, as text; empty if there are none."""
    stored_values = ((each, stored.get(each.stage, {}).get(each.field, each.value)) for each in tunings(Policy()))
    return " ".join(f"{each.name}={replace(each, value=value).text}" for each, value in stored_values if value != each.value)


def listing() -> str:
    """Return a listing of all fields for a terminal."""
    rows = list(tunings(Policy()))
    width = max(len(each.name) for each in rows)
    return "\n".join(f"{each.name:{width}}  {each.text:<10}  {each.unit} ({each.range})\n{'':{width}}  {each.reason}" for each in rows)
