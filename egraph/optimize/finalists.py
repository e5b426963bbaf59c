"""Compile the programs of a search, compare their results, and time them against onnxruntime on the model.

A program that computes wrong results, or that rounds too much, is replaced by others of the same e-graph before it is timed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

from egraph.errors import EinsatError
from egraph.optimize.options import OFFERED
from egraph.optimize.race import ESTIMATED_DEVICE, NO_TIME_TO_RACE, Contender, Race, doubt, not_raced, race, recorded_race
from egraph.optimize.run import Run
from egraph.optimize.search import Search
from egraph.optimize.simulation import rounding_kernels
from egraph.optimize.trial import (
    NO_TIME_TO_COMPILE,
    ORIGINAL,
    PLAIN,
    Entry,
    Trial,
    by_importance,
    by_preference,
    cheapest,
    compile_all,
    compile_entry,
    entries_of,
    entry_named,
    fastest,
)
from egraph.tensor import Program
from lower.cost.model import CostModel

Decision: TypeAlias = tuple[Race, Entry | None]
"""A race and the program that won it, or None if onnxruntime on the original model won."""


def timed(run: Run, searched: Search, plain: Program, key: str, *, is_measured: bool) -> Trial:
    """Compile the programs of a search, compare their results, and time them; programs whose results differ are replaced."""
    run.progress.stage("time the finalists" if run.device.is_timed else "compile the program")
    keep = run.repair.keep_subnormals
    run.searches += 1
    entries = entries_of(_stored(run, searched), plain, run.work, run.searches, keep_subnormals=keep)
    path = str(run.options.model.absolute())
    contenders = [Contender(ORIGINAL, run.model_digest.result(), "onnxruntime", path, keep_subnormals=keep)]
    contenders += [entry.contender for entry in by_importance(entries)]
    if not run.device.is_timed:
        decision = _estimated(run, searched, entries, contenders)
        preferred: tuple[str, ...] = ()
    else:
        preferred = by_preference(entries, run.derivations.errors())
        is_new = is_measured and not searched.choice.is_earlier
        known = None if is_new else _recorded_decision(run, entries, contenders, preferred)
        decision = known or _raced(run, searched, entries, contenders, preferred, key)
    if isinstance(decision, Search):
        return timed(run, decision, plain, key, is_measured=is_measured)
    raced, best = decision
    return Trial(searched, plain, tuple(entries), raced, best, key, preferred)


def _estimated(run: Run, searched: Search, entries: Sequence[Entry], contenders: Sequence[Contender]) -> Decision | Search:
    """Compile the program with the least estimated time, on a device without timing; return another search if its error is too large."""
    failed: dict[str, str] = {}
    raced = not_raced(contenders, ESTIMATED_DEVICE)
    while (best := cheapest(entries, raced)) is not None:
        best = best.folded(run.folder)
        compile_entry(best, run.repair.compile_options)
        if (closer := _within(run, searched, [best], failed, run.calibrated())) is not None:
            return closer
        if best.contender.name not in failed:
            break
        raced = not_raced(contenders, ESTIMATED_DEVICE, failed)
    return raced, best


def _recorded_decision(run: Run, entries: Sequence[Entry], contenders: Sequence[Contender], preferred: Sequence[str]) -> Decision | None:
    """Return the result of an earlier race of the same programs, with the winner compiled, or None if there is no usable one."""
    if (decided := decided_before(run, contenders, preferred, frozen=run.options.frozen)) is None:
        return None
    raced, name = decided
    best = entry_named(name, entries)
    if best is None:
        return raced, None
    best = best.folded(run.folder)
    try:
        compile_entry(best, run.repair.compile_options)
    except EinsatError:
        return None  # it compiled in the earlier run, but not now: race all programs again
    return raced, best


def _raced(
    run: Run, searched: Search, entries: Sequence[Entry], contenders: Sequence[Contender], preferred: Sequence[str], key: str
) -> Decision | Search:
    """Compile programs, compare them on one input and time them; return another search if a program has to be replaced."""
    run.look_again()
    sizes_bytes, failed = _compiled(run, by_importance(entries))
    other = _within(run, searched, entries, failed, run.calibrated())
    if other is not None:
        run.file(other, key)
        return other
    others = entries[1:]
    if others and failed.keys() >= {entry.contender.name for entry in others}:  # the errors of the first programs were too large
        exact = [entry for entry in others if not rounding_kernels(entry.program)]
        late = [entry for entry in exact if failed[entry.contender.name] == NO_TIME_TO_COMPILE]
        more_bytes, still_failed = _compiled(run, late)
        sizes_bytes |= more_bytes
        failed = {name: reason for name, reason in failed.items() if name not in more_bytes} | still_failed
    for entry in by_importance(entries):
        error = None if entry.contender.name in (PLAIN, *failed) else run.repair.tested(entry)
        if error is not None and (other := run.repair.repaired(error, searched, entry, run.calibrated())):
            run.file(other, key)
            return other
        if error is not None:
            failed[entry.contender.name] = f"its outputs differ: {error.what}"
    largest_bytes = max(sizes_bytes.values(), default=0)
    sized = [replace(c, size_bytes=sizes_bytes.get(c.name, sizes_bytes.get(PLAIN, largest_bytes))) for c in contenders]
    raced = _race(run, sized, failed, preferred)
    best = entry_named(fastest(preferred, raced, run.options.policy.race), entries)
    run.budget.quiet_run_seconds = min(run.budget.quiet_run_seconds, raced.median_us(ORIGINAL) / 1e6)
    return raced, best and best.folded(run.folder)


def decided_before(run: Run, contenders: Sequence[Contender], preferred: Sequence[str], *, frozen: bool) -> tuple[Race, str] | None:
    """Return an earlier race of the same contenders and its winner, or None if there is none or its result is in doubt.

    Raises MissingMeasurement if there is none and ``frozen`` is set.
    """
    raced = recorded_race(
        contenders, run.reference.runs.specs, database=run.database, device=run.device_key, frozen=frozen,
        inputs=run.reference.given.raced, generator=run.lowering.generator_digest,
    )  # fmt: skip
    policy = run.options.policy.race
    if raced is None or (not run.options.frozen and doubt(preferred, raced.timings, policy)):
        return None
    return raced, fastest(preferred, raced, policy)


def undecided(run: Run, trial: Trial) -> Iterator[str]:
    """Yield a note if a program was ahead of the model, but not clearly enough to replace it."""
    if trial.best is None and run.device.is_timed:
        text = doubt(trial.preferred, trial.raced.timings, run.options.policy.race)
        if text:
            longer = f"--budget {run.progress.longer_seconds:.0f}s races for twice as long"
            yield f"{text}: too uncertain to ship it; other work on the machine makes times uncertain, and {longer}"


def _compiled(run: Run, entries: Sequence[Entry]) -> tuple[dict[str, int], dict[str, str]]:
    return compile_all(entries, run.folder, run.budget, run.work, run.repair.compile_options)


def _race(run: Run, contenders: Sequence[Contender], failed: dict[str, str], preferred: Sequence[str]) -> Race:
    """Time the contenders in the time that the check leaves; if that is too short, only the original has a time, from its earlier runs."""
    options, budget, policy = run.options, run.budget, run.options.policy.race
    seconds = budget.racing_seconds
    if seconds < budget.least_race_seconds:
        return not_raced(contenders, NO_TIME_TO_RACE, failed, {ORIGINAL: budget.run_seconds})
    return race(
        contenders, run.reference.runs.specs, failed=failed, preferred=preferred, essential=ORIGINAL,
        inputs=run.reference.given.raced, threads=options.threads, seed=options.seed, database=run.database, device=run.device_key,
        seconds=min(policy.share * options.budget_seconds, seconds), most_seconds=seconds, run_seconds=budget.run_seconds,
        generator=run.lowering.generator_digest, policy=policy,
    )  # fmt: skip


def _within(run: Run, searched: Search, entries: Sequence[Entry], failed: dict[str, str], model: CostModel) -> Search | None:
    """Measure the errors of programs that round; return other programs if the best one's is too large and there is time for them.

    Programs whose errors are too large are added to ``failed``.
    """
    limit, ordered = run.options.tolerance.relative, by_importance(entries)
    errors: dict[str, float] = {}
    for entry in ordered:
        count, name = len(rounding_kernels(entry.program)), entry.contender.name
        if count and name not in failed:
            errors[name] = run.rounding.measure(entry, model)
            if errors[name] > limit:
                reason = f"{count} kernels round, and its outputs are off by {errors[name]:.2g} of the largest, more than {limit:g}"
                failed[name] = reason
    best, name = ordered[0], ordered[0].contender.name
    if errors.get(name, 0.0) <= limit or run.options.frozen:
        return None
    within_us = min((e.program.cost_us for e in ordered if errors.get(e.contender.name, math.inf) <= limit), default=math.inf)
    extract_seconds = searched.space.seconds if searched.space else 0.0

    def time_left() -> float:
        return run.progress.left_seconds - run.repair.seconds - extract_seconds

    has_time = time_left() > 0 and math.isinf(within_us)
    if has_time and best.contender.digest in run.storage.adds_error:
        run.progress.note(f"{name}: {failed[name]}; values that are not rounded anyway are stored in float32")
        run.storage.is_exact = True
        return searched
    closer: Search | None = None
    if run.rounding.knows(searched):
        if run.budget.has_time_to_ship() and run.rounding.raise_kernels(searched, best, errors[name], model, time_left):
            closer = run.rounding.mixed_alone(searched, model, run.options.finalists, within_us)
    elif has_time and run.rounding.raise_kernels(searched, best, errors[name], model, time_left):
        closer = run.rounding.with_mixed(run.repair.extracted(searched, model), model, run.options.finalists)
    if closer is not None:
        run.progress.note(f"{name}: {failed[name]}; those that move outputs most return to float32")
    return closer


def _stored(run: Run, searched: Search) -> Search:
    """Return a search whose programs store values in the precision that they are rounded to if that is faster, with ranges applied."""
    if not OFFERED[run.options.precision]:
        return searched
    model = run.calibrated()
    ranged = map(run.ranges.applied, searched.programs)
    return replace(searched, programs=tuple(run.storage.applied(program, model) for program in ranged))
