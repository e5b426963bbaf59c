"""Save the artefact and the standard model, and compare both with the original."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from egraph.optimize.artefact import export, finish_artefact, save_unchanged
from egraph.optimize.check import CheckResult, Disagreement
from egraph.optimize.check_noise import RunModel, open_onnxruntime
from egraph.optimize.outcome import Outcome
from egraph.optimize.records import read_checked, write_checked
from egraph.optimize.run import Run
from egraph.optimize.trial import Entry, compile_entry
from lower.compile import PLAN, keep_subnormals
from runtime import Session

TOGETHER_BELOW_BYTES = 1 << 30
"""Size of the weights up to which the standard model and the artefact are written at the same time."""


def save_and_check(run: Run, best: Entry | None, *, is_compiled: bool, is_repeated: bool) -> CheckResult:
    """Write the artefact and, at the same time, the standard model; compare both with the original."""
    weights = best.program.graph.tensors if best else run.graph.tensors
    with ThreadPoolExecutor(1) as aside:
        original_file, threads = run.options.model, run.options.threads
        exporting = aside.submit(export, best.program if best else None, original_file, run.model_file, threads)
        if sum(array.nbytes for array in weights.values()) > TOGETHER_BELOW_BYTES:
            exporting.result()  # writing both at once would take too much memory
        if best is None:
            save_unchanged(run.graph, original_file, run.artefact, keep_subnormals=run.repair.keep_subnormals)
        elif not is_compiled or not Path(best.contender.path).exists():  # if the race was read, only its winner is compiled
            compile_entry(best, run.repair.compile_options)
        if best is not None:
            Path(best.contender.path).rename(run.artefact)
        run.progress.stage("check the saved files")
        with Session(run.artefact, threads=threads, on=run.options.device) as session:
            return check(run, session, exporting.result(), best, is_repeated=is_repeated)


def checked_with_subnormals(run: Run, error: Disagreement, best: Entry | None, *, is_repeated: bool) -> tuple[CheckResult, str] | None:
    """Make an artefact whose check failed keep subnormal numbers, and check it again.

    Return the result and a note, or None if this cannot help or the check fails again.
    """
    if run.repair.keep_subnormals or not (run.artefact / PLAN).exists():
        return None
    keep_subnormals(run.artefact)
    saved = open_onnxruntime(run.model_file, run.options.threads)
    try:
        with Session(run.artefact, threads=run.options.threads, on=run.options.device) as session:
            checked = check(run, session, saved, best, is_repeated=is_repeated)
    except Disagreement:
        return None  # subnormal numbers are not the reason
    note = f"subnormal numbers are kept: with zeros for them, as the programs were timed, the check failed ({error.what})"
    run.progress.note(f"warning: {note}")
    return checked, note


def check(run: Run, session: Session, saved: Any, best: Entry | None, *, is_repeated: bool) -> CheckResult:
    """Compare the artefact, and the standard model if it is not the original itself, with the original.

    If ``is_repeated``, as many inputs are compared as in the earlier run, however long that takes, so that the result is the same.
    """
    digest = run.model_digest.result() + run.reference.given.key
    checked_before = read_checked(run.database, run.device_key, digest) if is_repeated else None
    started_seconds = run.budget.spent_seconds

    def goes_on(inputs: int) -> bool:
        if is_repeated:
            return checked_before is None or inputs < checked_before
        mean_seconds = (run.budget.spent_seconds - started_seconds) / inputs
        # The first input takes less time than others: what it is compared with was computed before the race.
        return run.budget.may_check(max(mean_seconds, run.budget.compared_seconds))

    candidates: dict[str, RunModel] = {run.artefact.name: lambda feeds: session.run(None, feeds)}
    if saved is not None:
        candidates = {run.model_file.name: lambda feeds: saved.run(None, feeds), **candidates}
    result = run.repair.compared(candidates, goes_on, run.options.checks, best)
    if not is_repeated:
        write_checked(run.database, run.device_key, digest, result.inputs if result.is_short else None)
    return result


def finish(run: Run, outcome: Outcome, checked: CheckResult, best: Entry | None) -> Outcome:
    """Add the results of the check to the outcome, and complete the artefact."""
    run.progress.update(f"largest relative error {checked.max_rel_err:.2g} on {checked}")
    shortage = f"results were compared on {checked}, not on {run.budget.inputs}: there was no time for more"
    short = (shortage,) if checked.is_short and checked.inputs < run.budget.inputs else ()
    for text in (*checked.amplified, *checked.refused, *checked.weak, *short):
        run.progress.note(text)
    check_notes = outcome.check_notes + checked.amplified + checked.refused + checked.weak + short
    inputs = {"given": checked.given, "random": checked.inputs - checked.given}
    outcome = replace(
        outcome, max_rel_err=checked.max_rel_err, worst_output=checked.worst_output, check_notes=check_notes, inputs=inputs,
    )  # fmt: skip
    finish_artefact(run.artefact, outcome, best.program if best else None, run.lowering, run.options.rule_files)
    return outcome
