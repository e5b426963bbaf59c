"""How each stage is tuned: one frozen value a stage, all of them in one ``Policy``.

    --policy extract.share=0.1 --policy race.rounds=9        change two of them
    --policy help                                            list all, with units, defaults and reasons

What decides a result is stored with it, so a policy is part of an artefact's manifest and of the key that a search is filed under.
Numbers that follow from a format or from mathematics are not tuning: they stand where they are used.
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
    """A setting names no field of a policy, or gives it a value that it cannot have."""


def tuned(default: T, unit: str, reason: str, *, least: float = 0.0, most: float = math.inf) -> T:
    """Return a field of a policy: its default, what it counts, and why it is there; values lie in ``least`` to ``most``."""
    described: Any = field(default=default, metadata={"unit": unit, "reason": reason, "least": least, "most": most})
    value: T = described
    return value


@dataclass(frozen=True)
class SaturationPolicy:
    """Growing the e-graph by rules, and then by derivations."""

    share: float = tuned(
        0.2, "part of the budget", "Measuring is worth more time than rules that find little after they have settled.", most=1
    )
    iterations: int = tuned(40, "iterations", "A saturation that still grows after so many finds permutations of what it has.", least=1)
    matches: int = tuned(
        2_000, "matches", "What one iteration uses of a rule's matches; the rest wait, so that no rule starves the others.", least=1
    )
    largest_join: int = tuned(
        1_000_000, "matches", "A rule with more sits the iteration out: egglog cannot be stopped inside a query.", least=1
    )
    largest_merge: int = tuned(
        32, "operators", "Merged at once, at most: a merged operator's operands stay readable and its compile time bounded.", least=2
    )
    repeats: float = tuned(
        0.2, "part of the operators", "What has to be saved, at least, for equal blocks to be searched once: nothing is fused across their "
        "borders.", most=1
    )  # fmt: skip
    rules_share: float = tuned(
        0.6, "part of the e-nodes", "What rules may make before derivations run, so that derivations always do.", most=1
    )
    rules_growth: float = tuned(
        4.0, "times the model's operators",
        "How far rules may grow the e-graph. In 58 of 63 models rules settle before. The others have long concatenations, or factors that "
        "commute: their e-graphs took two thirds of the budget to grow and to lay candidates in, and few kernels were measured.",
    )  # fmt: skip
    rules_least_growth: int = tuned(6_000, "e-nodes", "Room that rules have in a small model, whatever the factor says.")
    derivations_share: float = tuned(
        0.4, "part of the stage's time", "What derivations have at least, also where rules have spent all of it.", most=1
    )
    derivations_growth: float = tuned(
        4.0, "times the e-nodes",
        "How far e-nodes may grow once derivations have run: programs of many views could be moved about without end, and what is worth "
        "having is found early.", least=1
    )  # fmt: skip
    derivations_least_growth: int = tuned(2_000, "e-nodes", "Room that derivations have in a small e-graph, whatever the factor says.")
    derivation_rounds: int = tuned(
        2, "rounds", "Operators inside a derived program (convolutions of phases) may have derivations of their own.", least=1
    )
    derived_programs: int = tuned(16, "programs", "What one e-class gets from derivations, at most.")
    derived_regions: int = tuned(
        12, "regions", "What one rule for regions is offered, at most: those whose operators cost most. Each is searched for a second."
    )
    derived_groups: int = tuned(32, "groups", "What one rule for groups of operators is offered, at most: the first of the program.")


@dataclass(frozen=True)
class CandidatesPolicy:
    """Laying generated kernels over the e-graph."""

    operators: int = tuned(24, "operators", "Fused into one kernel, at most: larger kernels compile long and gain no more.", least=1)
    operand_sets: int = tuned(8, "sets of tensors", "From which one value is computed, at most: those with the fewest bytes.", least=1)
    operations_a_byte: float = tuned(
        4.0, "operations a byte", "Up to which a product is bound by memory, so that generated loops may compute it (EinNet, OSDI 2023)."
    )


@dataclass(frozen=True)
class ExtractPolicy:
    """Selecting programs from the e-graph."""

    share: float = tuned(0.04, "part of the budget", "One exact extraction; it is repeated after every round of measuring.", most=1)
    best_share: float = tuned(0.6, "part of an extraction's time", "The solver's time for the best program.", most=1)
    variant_share: float = tuned(
        0.4, "part of an extraction's time", "The solver's time for the best program with another costly kernel.", most=1
    )
    patience: float = tuned(5.0, "times an extraction's time", "After which variants are given up: a net for loaded machines.", least=1)
    solver_units: float = tuned(
        0.25, "units a second", "Of the solver's deterministic clock on a machine of this kind, rounded down.", least=1e-3
    )
    variant_slack: float = tuned(1.3, "times the greedy cost", "What a program that must differ from the best may cost.", least=1)
    worth_timing: float = tuned(1.6, "times the best cost", "Variants that cost more are not worth timing.", least=1)
    meaningful: float = tuned(
        0.02, "part of a program's time", "The least time of a kernel for which a variant without it is extracted.", most=1
    )
    spare: float = tuned(
        1.5, "times the cheaper cost", "Up to which a candidate with the operands of a cheaper one stays: estimates can be wrong.", least=1
    )
    moves: int = tuned(
        50_000, "moves", "Local moves tried, at most: a count, so that the answer does not depend on the machine's load."
    )
    exact_over_greedy: float = tuned(
        10.0, "times a greedy extraction", "How long an exact one is believed to take until one was made.", least=1
    )
    variants_over_greedy: float = tuned(25.0, "times a greedy extraction", "How long one of several programs is believed to take.", least=1)
    caution: float = tuned(
        4.0, "times the estimate", "What estimates count in the last extraction: time ended before they could be measured.", least=1
    )


@dataclass(frozen=True)
class CostPolicy:
    """Estimating kernels that have no measurement."""

    hopeless: float = tuned(
        1.5, "times a rival's time", "A candidate with a larger estimate is not measured beside a measured rival.", least=1
    )
    enough_alike: int = tuned(
        3, "kernels", "Measured generated kernels of about a size from which others of that size are estimated.", least=1
    )
    optimism: float = tuned(
        0.6, "part of what the prior expects", "What is not measured is met with some hope: what might be faster has to be tried.", most=1
    )
    library_caution: int = tuned(
        3,
        "power of the caution",
        "A library, or onnxruntime, may have a reference implementation only, thousands of times slower: it is met with more caution.",
    )
    opaque: float = tuned(
        4.0,
        "times the estimate",
        "A kernel that onnxruntime runs as a model of its own: of convolutions of bytes one took 50 times the roofline's.",
        least=1,
    )
    least_of_relative: float = tuned(
        0.5, "part of a relative's time", "What a kernel is estimated to take that moves far fewer bytes.", most=1
    )


@dataclass(frozen=True)
class MeasurePolicy:
    """Measuring kernels while programs are chosen."""

    share: float = tuned(0.8, "part of the budget", "Measuring ends when it is spent, or earlier: race and check come after it.", most=1)
    kept_share: float = tuned(0.6, "part of the budget", "Kept for race and check at most, where a model is slow.", most=1)
    laid_share: float = tuned(
        0.7,
        "part of the time for measuring",
        "Laying the kernels of derived programs may take: where it takes more, few would be measured.",
        most=1,
    )
    laid_least_seconds: float = tuned(1.0, "seconds", "Laying kernels takes so long in any case: small e-graphs are always laid whole.")
    derived_share: float = tuned(
        0.4, "part of the time for measuring", "Kept for derived programs while the rules' own are measured.", most=1
    )
    family_share: float = tuned(0.5, "part of the time left", "Spent on one kernel of each family of a library's.", most=1)
    family_rounds: int = tuned(3, "rounds", "Where the first kernel of a family fails, others of it are tried, so many in all.", least=1)
    greedy_rounds: int = tuned(6, "extractions", "Greedy extractions, at most; each measures what it chose.", least=1)
    exact_rounds: int = tuned(8, "extractions", "Exact ones of the best program, at most.", least=1)
    library_rounds: int = tuned(
        4, "extractions", "After time ended measuring, at most: a library's kernel that was not measured may be too slow to be run.",
        least=1
    )  # fmt: skip
    variant_rounds: int = tuned(3, "extractions", "Exact ones of all programs that are going to be timed, at most.", least=1)
    stored_share: float = tuned(0.15, "part of the budget", "At most, for kernels whose operands or results are stored rounded.", most=1)
    batch: int = tuned(32, "kernels", "Compiled together: starting the compiler costs as much as compiling several.", least=1)
    first_batch: int = tuned(
        4, "kernels", "The first batch of a program to be timed: the next ones are twice as large each, at a known pace.",
        least=1
    )  # fmt: skip
    kernel_seconds: float = tuned(
        0.15, "seconds", "Assumed to compile a kernel while few were compiled: one in a hundred takes 3 s, which is no pace for the others."
    )
    compiled_ahead: int = tuned(
        8, "kernels a process", "Compiled beside the growing e-graph between two looks at whether compiling should go on.", least=1
    )
    negligible: float = tuned(
        0.002, "part of a program's time", "A generated kernel that is believed to take less, in all its uses, stays estimated.", most=1
    )
    runs: int = tuned(4, "runs", "What one measurement takes at least, the reference's among them.", least=1)
    judged_bytes_s: float = tuned(5e8, "bytes a second", "Operands are drawn and results compared about this fast, or faster.", least=1)
    patience_seconds: float = tuned(5.0, "seconds", "A kernel is waited for so long, however little time is left.")
    disappointment: float = tuned(
        2.0, "times the estimate", "What an exported kernel is believed to take, so that its rivals are asked for next.", least=1
    )


@dataclass(frozen=True)
class RacePolicy:
    """Timing whole programs against each other and against onnxruntime."""

    share: float = tuned(
        0.25,
        "part of the budget",
        "Race at most, but until every contender has run a few times; the fastest and the original race for as long again where it is open "
        "which of them wins.",
        most=1,
    )
    rounds: int = tuned(40, "rounds", "At most; a race ends earlier once its winner is known.", least=1)
    least_rounds: int = tuned(5, "rounds", "At least, unless time is over.", least=1)
    confidence: float = tuned(
        0.995, "probability", "With which a contender is behind before it is given up, and a program ahead before a race ends early.",
        least=0.5, most=1,
    )  # fmt: skip
    verdict: float = tuned(
        0.95, "probability", "With which a program is faster than the original, at the end of a race, before it is shipped.",
        least=0.5, most=1,
    )  # fmt: skip
    noise: float = tuned(
        0.08,
        "part of a contender's time",
        "By which one round may be off: few rounds that agree by chance prove little.",
    )
    margin: float = tuned(
        0.015, "part of the winner's time", "By which no contender may be faster when a race ends: less is not worth more rounds."
    )
    runs: int = tuned(3, "runs", "Of each contender in a round, at least.", least=1)
    settle_seconds: float = tuned(
        0.5, "seconds", "Between turns, at most: until the thread pool that has just worked spins no more and leaves the cores free."
    )
    turn_seconds: float = tuned(
        0.1, "seconds", "One contender's part of a round, unless a few runs take longer: many short rounds tell more than few long ones."
    )
    first_gap: float = tuned(3.0, "times the fastest", "Who takes longer in the first round is not timed again.", least=1)
    gap: float = tuned(1.3, "times the fastest", "Who took longer in every round is not timed again, from race.gap_rounds on.", least=1)
    gap_rounds: int = tuned(
        4, "rounds", "In which race.first_gap shrinks to race.gap: in two rounds, bursts slow a good program both times.", least=2
    )
    memory_share: float = tuned(
        0.6, "part of the free memory", "What all contenders may fill together; beyond it only one is loaded at a time.", most=1
    )
    arena_factor: float = tuned(
        3.0, "times a program's memory", "onnxruntime runs without its arena where so much does not fit into memory.", least=1
    )
    patience_seconds: float = tuned(
        20.0, "seconds", "A contender hangs that takes longer to answer, beside what its size explains.", least=1
    )
    loaded_bytes_s: float = tuned(1e8, "bytes a second", "The slowest at which a contender's memory is filled.", least=1)
    slow_run_seconds: float = tuned(
        0.5, "seconds", "Of a model that takes so long in onnxruntime, one run of each contender is enough where there is no time for more."
    )
    slower_than_original: float = tuned(
        20.0, "times onnxruntime", "A contender hangs that takes longer, and the patience besides.", least=1
    )
    contenders: int = tuned(
        2,
        "contenders",
        "Opened in any case: the original and the most promising program; the others where that takes little time.",
        least=2,
    )
    open_share: float = tuned(0.1, "part of the budget", "What a search keeps for opening contenders beyond those.", most=1)
    runs_share: float = tuned(0.1, "part of the budget", "What a search keeps for the least runs of all contenders.", most=1)


@dataclass(frozen=True)
class PredictionPolicy:
    """Examining programs that take another time than their kernels predict."""

    factor: float = tuned(
        1.3, "times the prediction", "By which a program or a kernel has to be off for the reason to be searched.", least=1
    )
    kernels: int = tuned(8, "kernels", "Timed alone again: those whose times add most to the difference.", least=1)
    least_share: float = tuned(0.02, "part of a program's time", "By which a kernel is off, at least.", most=1)
    runs: int = tuned(10, "runs", "In which kernels are timed inside a program.", least=1)


@dataclass(frozen=True)
class CheckPolicy:
    """Rehearsing, checking and repairing programs. None of it makes the check of the saved files laxer: ``--tolerance`` is for that."""

    seconds: float = tuned(5.0, "seconds", "A check may take so long, however little time is left; less would weaken it.", least=5.0)
    float64_seconds: float = tuned(
        5.0, "seconds", "An output may take in float64, which decides where onnxruntime may be the one that is inexact."
    )
    replaced: int = tuned(
        6, "inputs", "Random inputs that others may replace because the model amplifies rounding too much on them.", most=6
    )
    attempts: int = tuned(3, "programs", "May prove wrong and give way to one without what is to blame, before the model is given up.")
    margin: float = tuned(
        0.5, "part of the tolerance", "A program may use before it is compiled: kernels round in other ways than onnxruntime does.", most=1
    )
    layer: float = tuned(
        1 / 64,
        "part of a derivation's error",
        "That one layer has on usual data; the whole error is that of models of many layers.",
        most=1,
    )
    tapped_bytes: int = tuned(1 << 30, "bytes", "Operands and results that are kept to see how large they are, at most.")
    bisections: int = tuned(
        3, "rounds", "What bisection left is rehearsed again: in place of a form that was left out, another may have been chosen.", least=1
    )


@dataclass(frozen=True)
class BudgetPolicy:
    """What is kept of the budget for the steps after a search."""

    compile_share: float = tuned(
        0.05, "part of the budget", "Kept for compiling: a program without rules that takes longer gives way to measuring.", most=1
    )
    plan_seconds: float = tuned(
        0.0015, "seconds a kernel", "Kept for planning the chosen program, its buffers and its steps: 3 s for 2,000 kernels."
    )


@dataclass(frozen=True)
class Policy:
    """How every stage is tuned; the defaults are what benchmarks were measured with."""

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
    """One field of a policy: its name with its stage, its value, and what is known of it."""

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
        """Return the value for people."""
        return str(self.value) if isinstance(self.value, int) else f"{self.value:g}"

    @property
    def range(self) -> str:
        """Return ``0 to 1``, or ``1 or more``."""
        return f"{self.least:g} or more" if self.most == math.inf else f"{self.least:g} to {self.most:g}"

    def parsed(self, text: str) -> float:
        """Return the value of a text, of the kind of the default; raises PolicyError where it cannot be one."""
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
    """Return the settings that lead from the defaults to a stored policy, for people; empty where there are none."""
    stored_values = ((each, stored.get(each.stage, {}).get(each.field, each.value)) for each in tunings(Policy()))
    return " ".join(f"{each.name}={replace(each, value=value).text}" for each, value in stored_values if value != each.value)


def listing() -> str:
    """Return all fields for a terminal."""
    rows = list(tunings(Policy()))
    width = max(len(each.name) for each in rows)
    return "\n".join(f"{each.name:{width}}  {each.text:<10}  {each.unit} ({each.range})\n{'':{width}}  {each.reason}" for each in rows)
