"""Gather what a run found out into one value."""

from __future__ import annotations

import math
import platform
import statistics
from collections.abc import Sequence

from egraph import __version__
from egraph.check import CheckResult
from egraph.cost import FREE, CostModel
from egraph.finalists import Race
from egraph.ir import Candidate, Graph, Kernel, Program
from egraph.optimize.derivations import Gate
from egraph.optimize.gate import notes as rule_notes
from egraph.optimize.gate import unproved
from egraph.optimize.kernel_rows import kernel_rows
from egraph.optimize.options import Options
from egraph.optimize.outcome import Finalist, Growth, Outcome, RuleUse
from egraph.optimize.trial import ORIGINAL, PLAIN, Entry, Trial
from egraph.rule import MergeRule, Rule
from runtime.profile import device_key
from runtime.profile.device import library_version

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
    notes: tuple[str, ...],
    arena_bytes: int,
    model_digest: str,
) -> Outcome:
    """Return the outcome of a run whose files were checked."""
    found, plain, raced, best = trial.found, trial.plain, trial.raced, trial.best
    rows = kernel_rows(best.program, model) if best else ()
    launched = _launched(best.program) if best else []
    uses = {rule.name: sum(rule.name in row.rules for row in rows) for rule in rules}
    finalists = [
        Finalist(
            c.contender.name, c.contender.digest, len(_launched(c.program)), model.program_us(c.program), _time(raced, c),
            _message(raced, c), estimated=_estimated(c.program, model),
        )
        for c in trial.entries
    ]
    shipped = best.contender.name if best else ORIGINAL
    counts = {"library": 0, "eoperator": 0, "opaque": 0 if best else 1}
    for row in rows:
        counts["opaque" if row.implementation == "opaque" else "eoperator" if row.implementation == "tvm" else "library"] += 1
    weights = best.program.graph.tensors if best else graph.tensors
    return Outcome(
        model=options.model.name,
        model_digest=model_digest,
        device=device_key(options.threads),
        threads=options.threads,
        status="faster" if best else "unchanged",
        latency_us=latencies_us(raced, shipped),
        repeats=min(len(raced.timings[name].samples_us) for name in (ORIGINAL, shipped)),
        max_rel_err=checked.max_rel_err,
        worst_output=checked.worst_output,
        rules=tuple(
            RuleUse(rule.name, rule.verdict, uses[rule.name], rule.text.splitlines()[0], rule.rounding)
            for rule in sorted(rules, key=lambda rule: (-uses[rule.name], rule.name))
            if uses[rule.name]
        )
        + derivations.uses(launched),
        derived=derivations.derived(launched),
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
        finalists=tuple(finalists),
        shipped=shipped,
        memory={"arena_bytes": arena_bytes, "weights_bytes": sum(array.nbytes for array in weights.values())},
        environment=environment(),
        options=options.stored(),
        notes=notes,
        kernel_counts=counts,
        refused=found.choice.refused,
        unsafe_rules=unproved(rules),
        rule_notes=rule_notes(rules),
    )


def latencies_us(raced: Race, shipped: str) -> dict[str, float | None]:
    """Return what ``Outcome.latency_us`` holds."""
    times_us = {ORIGINAL: raced.median_us(ORIGINAL), PLAIN: raced.median_us(PLAIN), "optimized": raced.median_us(shipped)}
    return {name: time_us if math.isfinite(time_us) else None for name, time_us in times_us.items()}


def _launched(program: Program) -> list[Kernel]:
    """Return the kernels that take time: no views, no constants."""
    return [kernel for kernel in program.kernels if kernel.implementation not in FREE]


def _estimated(program: Program, model: CostModel) -> int:
    """Return how many kernels of a program have no measured time."""
    return sum(model.record(Candidate(k.fragment, (), (), k.implementation)) is None for k in _launched(program))


def _time(raced: Race, entry: Entry) -> float | None:
    samples = raced.timings[entry.contender.name].samples_us
    return statistics.median(samples) if samples else None


def _message(raced: Race, entry: Entry) -> str:
    return raced.timings[entry.contender.name].message
