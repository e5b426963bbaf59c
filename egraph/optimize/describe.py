"""Gather what a run found out into one value."""

from __future__ import annotations

import math
import platform
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from egraph import __version__
from egraph.optimize.check import CheckResult
from egraph.optimize.derivations import Gate
from egraph.optimize.gate import notes as rule_notes
from egraph.optimize.gate import unproved
from egraph.optimize.kernel_rows import kernel_rows
from egraph.optimize.options import Options
from egraph.optimize.outcome import KERNEL_KINDS, Finalist, Growth, InPlace, KernelRow, Outcome, RuleUse
from egraph.optimize.race import Race
from egraph.optimize.trial import ORIGINAL, PLAIN, Entry, Trial
from egraph.rule import MergeRule, Rule
from egraph.tensor import Candidate, Graph, Kernel, Program, format_fragment
from lower.cost.model import CostModel, KernelKey
from runtime.profile.versions import library_version

LIBRARIES = ("egglog", "onnx", "onnxruntime", "onednn-cpu-gomp", "apache-tvm", "ortools", "numpy")


def environment() -> dict[str, str]:
    """Return the versions of what takes part."""
    return {"einsat": __version__, "python": platform.python_version(), **{name: library_version(name) for name in LIBRARIES}}


def describe(
    trial: Trial,
    graph: Graph,
    model: CostModel,
    checked: CheckResult,
    rules: Sequence[Rule | MergeRule],
    derivations: Gate,
    options: Options,
    *,
    is_timed: bool,
    notes: tuple[str, ...],
    arena_bytes: int,
    keeps_subnormals: bool,
    model_digest: str,
) -> Outcome:
    """Return the outcome of a run whose files were checked."""
    found, plain, raced, best = trial.found, trial.plain, trial.raced, trial.best
    rows = kernel_rows(best.program, model) if best else ()
    launched = _launched(best.program) if best else []
    shipped = best.contender.name if best else ORIGINAL
    weights = best.program.graph.tensors if best else graph.tensors
    return Outcome(
        model=options.model.name,
        model_digest=model_digest,
        device=model.device,
        threads=options.threads,
        status="unchanged" if best is None else "faster" if is_timed else "estimated",
        latency_us=latencies_us(raced, shipped),
        repeats=min(len(raced.timings[name].samples_us) for name in (ORIGINAL, shipped)),
        max_rel_err=checked.max_rel_err,
        worst_output=checked.worst_output,
        rules=_uses(rules, rows, best.program.rules if best else ()) + derivations.uses(launched),
        derived=derivations.derived(launched),
        offered=derivations.offered(found.saturation.statistics, is_compared=bool(found.choice.selections)),
        growth=tuple(Growth(i.e_nodes, i.e_classes, i.matches, i.seconds) for i in found.saturation.iterations),
        rule_statistics=tuple(
            {"rule": s.rule, "matches": s.matches, "unions": s.unions, "e_nodes": s.e_nodes, "built": s.built}
            for s in found.saturation.statistics
            if s.matches
        ),
        stop_reason=found.saturation.stop_reason,
        search_seconds=found.saturation.seconds,
        extract_method=found.choice.best.method,
        extract_optimal=found.choice.best.optimal,
        extract_seconds=found.choice.extract_seconds,
        kernels=rows,
        before=kernel_rows(plain, model),
        finalists=tuple(_finalist(entry, raced, model) for entry in trial.entries),
        shipped=shipped,
        memory={"arena_bytes": arena_bytes, "weights_bytes": sum(array.nbytes for array in weights.values())},
        environment=environment(),
        options=options.stored(),
        notes=notes,
        kernel_counts=_counts(rows) if best else {**_counts(()), "opaque": 1},
        refused=found.choice.refused,
        unsafe_rules=unproved(rules),
        rule_notes=rule_notes(rules),
        keeps_subnormals=keeps_subnormals,
        subnormal_weights=subnormal_count(graph.tensors.values()),
        in_place=tuple(one for entry in trial.entries for one in _in_place(entry, model)),
    )


def subnormal_count(arrays: Iterable[np.ndarray]) -> int:
    """Return how many elements are not zero and smaller than any normal number of their type."""
    counts = []
    for array in arrays:
        if array.dtype in (np.float32, np.float64):
            magnitudes = np.abs(array)
            counts.append(np.count_nonzero((magnitudes > 0) & (magnitudes < np.finfo(array.dtype).tiny)))
    return int(sum(counts))


def latencies_us(raced: Race, shipped: str) -> dict[str, float | None]:
    """Return what ``Outcome.latency_us`` holds."""
    times_us = {ORIGINAL: raced.median_us(ORIGINAL), PLAIN: raced.median_us(PLAIN), "optimized": raced.median_us(shipped)}
    return {name: time_us if math.isfinite(time_us) else None for name, time_us in times_us.items()}


def _uses(rules: Sequence[Rule | MergeRule], rows: Sequence[KernelRow], everywhere: Sequence[str]) -> tuple[RuleUse, ...]:
    """Return the rules that a program rests on, those of most kernels first; ``everywhere``: also where no kernel runs."""
    uses = {rule.name: sum(rule.name in row.rules for row in rows) for rule in rules}
    used = sorted((rule for rule in rules if rule.name in everywhere), key=lambda rule: (-uses[rule.name], rule.name))
    return tuple(RuleUse(rule.name, rule.verdict, uses[rule.name], rule.text.splitlines()[0], rule.rounding) for rule in used)


def _counts(rows: Sequence[KernelRow]) -> dict[str, int]:
    """Return how many kernels there are of each kind, under the names that reports use."""
    kinds = Counter(row.kind for row in rows)
    return {kind: kinds[kind] for kind in dict.fromkeys([*KERNEL_KINDS, *kinds])}


def _finalist(entry: Entry, raced: Race, model: CostModel) -> Finalist:
    timing = raced.timings[entry.contender.name]
    median_us = statistics.median(timing.samples_us) if timing.samples_us else None
    return Finalist(
        entry.contender.name, entry.contender.digest, len(_launched(entry.program)), model.program_us(entry.program), median_us,
        timing.message, estimated=_estimated(entry.program, model),
    )  # fmt: skip


def _in_place(entry: Entry, model: CostModel) -> list[InPlace]:
    """Return the kernels of a program that are known to take another time inside programs for this model."""
    found: dict[KernelKey, InPlace] = {}
    for kernel in _launched(entry.program):
        one = Candidate(kernel.fragment, (), (), kernel.implementation)
        inside, alone = model.in_place(one), model.record(one)
        if inside is not None and inside.median_us is not None:
            alone_us = alone.median_us if alone is not None else None
            found[model.key(one)] = InPlace(
                entry.contender.name, kernel.implementation.text, format_fragment(kernel.fragment), alone_us, inside.median_us
            )
    return list(found.values())


def _launched(program: Program) -> list[Kernel]:
    """Return the kernels that take time: no views, no constants."""
    return [kernel for kernel in program.kernels if not kernel.implementation.is_free]


def _estimated(program: Program, model: CostModel) -> int:
    """Return how many kernels of a program have no measured time."""
    return sum(model.record(Candidate(k.fragment, (), (), k.implementation)) is None for k in _launched(program))
