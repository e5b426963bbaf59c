"""The main job, stage by stage: read the model, search, time the finalists, check the saved files, publish."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from egraph.errors import CheckFailed, LowerError
from egraph.onnx.importer.halves import half_types
from egraph.onnx.importer.model_file import read_model
from egraph.optimize import original, stages
from egraph.optimize.admission import choose_derivations, choose_rules
from egraph.optimize.artefact import REPORT
from egraph.optimize.budget import Budget, worked_here
from egraph.optimize.byte_ranges import Ranges, compared_within, refuse_without_inputs
from egraph.optimize.check import Disagreement, open_original
from egraph.optimize.choice import program_digest
from egraph.optimize.compiling_ahead import compiling_ahead
from egraph.optimize.derivations import Deriver
from egraph.optimize.describe import describe, latencies_us
from egraph.optimize.finalists import decided_before, timed, undecided
from egraph.optimize.folding import Folder
from egraph.optimize.gate import Gate
from egraph.optimize.job_export import import_profiles
from egraph.optimize.kernels import kernel_program
from egraph.optimize.measuring import Job, Measurer, calibration_programs
from egraph.optimize.options import CONSTRAINED, OFFERED, Options
from egraph.optimize.outcome import Outcome
from egraph.optimize.outline import Outline
from egraph.optimize.output import Destination, check_report, destination, publish, staging, write_beside
from egraph.optimize.precision import Rounding, unoffered
from egraph.optimize.progress import Progress
from egraph.optimize.records import (
    Memo,
    choices_digest,
    memo_path,
    read_memo,
    read_search,
    search_key,
    usable_search,
    write_memo,
)
from egraph.optimize.reference import Answers, Reference, accepted, compared_in_float32, read
from egraph.optimize.repair import Repair
from egraph.optimize.repeats import outlined
from egraph.optimize.run import Run
from egraph.optimize.saving import checked_with_subnormals, finish, save_and_check
from egraph.optimize.search import Search, is_cut_short, library_sources, plain_program, resume_search, search
from egraph.optimize.storage import Storage, extracted_digest
from egraph.optimize.trial import (
    ORIGINAL,
    Entry,
    Trial,
    gain,
    unchecked,
    without,
)
from egraph.rule import MergeRule, Rule
from egraph.tensor import FrozenEGraph, Graph, Program, Selection
from lower.cost.model import CostModel
from lower.roofline import DeviceSpeed
from lower.targets import lowering
from runtime.artefact import Artefact
from runtime.devices import device
from runtime.measure import Worker

LEAST_MEASURING_SECONDS = 2.0
"""A search that ran out of time is resumed only if at least this much time is left for measuring."""


def optimize(options: Options, progress: Progress) -> Outcome:
    """Optimise a model and write the results. Raises EinsatError; nothing is written then."""
    refuse_without_inputs(options)
    output = destination(options.model, options.output)
    if options.report is not None:
        check_report(options.report)
    progress.stage("read the model")
    with original.at_sizes(options.model, options.shapes) as model, original.in_float32(model) as wide:
        return _optimize(replace(options, model=model), wide, output, progress)


def _optimize(options: Options, wide: Path, output: Destination, progress: Progress) -> Outcome:
    """Optimise a model whose sizes are fixed. If it computes in 16 bits, ``wide`` is the same model in float32."""
    aside = ThreadPoolExecutor(2)
    digest = aside.submit(original.digest, options.model)
    opening = aside.submit(_opened, options.model, options.threads)
    aside.shutdown(wait=False)
    options, imported, user_inputs = read(options, progress.note)
    session, open_seconds = opening.result()
    answers = Answers()
    runs = compared_within(accepted(session, imported.graph, user_inputs, options.seed, answers.keep), options)
    compared = options
    if wide != options.model:
        answers = Answers()
        wide_session = open_original(wide, options.threads)
        types = half_types(read_model(options.model)[0])
        is_near, text = compared_in_float32(session, wide_session, types, runs, user_inputs, options.seed)
        if is_near:
            session, compared = wide_session, replace(options, model=wide)
        runs = replace(runs, notes=(*runs.notes, text))
    for text in runs.notes:
        progress.note(text)
    target_lowering = lowering(options.device)
    with closing(stages.open_database(options, progress)) as database:
        if import_profiles(options, database, progress) and not options.frozen:
            options = replace(options, again=True)  # an earlier search chose without these times
        with staging(output) as stage, Worker() as worker, target_lowering.kept_compilers():
            work = stage / "work"
            work.mkdir()
            results = stage / "results"
            results.mkdir()
            chosen = choose_derivations(options.skip_rules, allow=options.allow, enabled=options.derivations, partial=options.partial)
            reference = Reference(compared, imported.graph, user_inputs, runs, session, answers)
            deriver, folder = Deriver(chosen, Gate(database), options.tolerance), Folder(imported.graph)
            budget = Budget(
                progress, contenders=options.finalists + 1, checks=options.checks, quiet_open_seconds=open_seconds,
                quiet_run_seconds=runs.run_seconds, slowdown=runs.slowdown, given=len(user_inputs.files), policy=options.policy,
            )  # fmt: skip
            outline = outline_of(imported.graph, options)
            repair = Repair(options, progress, outline, reference, folder, budget, deriver, work, options.is_exact_below_normal)
            run = Run(
                options, progress, imported.graph, reference, database, worker, deriver, budget, folder, repair,
                work=work, model_file=results / output.model.name, artefact=results / output.artefact.name, model_digest=digest,
                device=device(options.device), device_key=stages.device_key(options, database), lowering=target_lowering,
                storage=Storage(target_lowering),
                rounding=Rounding(reference.checked_samples, options.threads, options.device, folder.fold),
                ranges=Ranges(user_inputs.feeds, options.threads, user_inputs.key if options.precision == "int8" else ""),
            )  # fmt: skip
            outcome = _repeated(run) or _searched(run, imported.notes + imported.hints + runs.notes + outline.notes)
            progress.stage("write")
            for path in results.glob("*.partial"):
                shutil.rmtree(path)
            files = [str(path) for path in publish(results, output)]
            if options.report is not None:
                write_beside(options.report, (output.artefact / REPORT).read_text(encoding="utf-8"), option="--report FILE")
                files.append(str(options.report))
            return replace(outcome, files=tuple(files), hints=imported.hints, seconds_total=progress.spent_seconds)


def _opened(model: Path, threads: int) -> tuple[Any, float]:
    """Open the model in onnxruntime; return its session and how long opening it again takes."""
    importlib.import_module("onnxruntime")
    return worked_here(lambda: open_original(model, threads))


def outline_of(graph: Graph, options: Options) -> Outline:
    """Return the outline of a graph, which holds each of its equal blocks once and is searched in its place.

    If the stages are written out (``dump_folder``), the whole graph is searched, because each stage then is a program of the whole model.
    """
    return Outline(graph, graph) if options.dump_folder is not None else outlined(graph, options.policy.saturation.repeats)


def _repeated(run: Run) -> Outcome | None:
    """Compile, check and save the result of the same command's last run; return None if it is unknown or no longer right."""
    if not run.device.is_timed:
        return None  # a memo records the winner of a race
    options = run.options
    path = memo_path(run.model_digest.result() + run.ranges.key, run.device_key, options)
    memo = read_memo(path, run.graph) if path else None
    earlier = usable_search(run.database, run.device_key, memo.search_key, options) if memo else None
    if options.dump_folder or memo is None or earlier is None or choices_digest(earlier.choices) != memo.choices:
        return None
    contenders = [run.contender(name, digest) for name, digest in memo.contenders]
    decided = decided_before(run, contenders, [c.name for c in contenders], frozen=False)
    if decided is None or decided[1] != memo.outcome.shipped:
        return None
    run.progress.note(earlier.describe())
    run.progress.stage("compile the program")
    run.repair.keep_subnormals = memo.outcome.keeps_subnormals
    try:
        best = None
        if memo.program is not None:
            shipped = next(contender for contender in contenders if contender.name == memo.outcome.shipped)
            best = Entry(shipped, memo.program).folded(run.folder)
        checked = save_and_check(run, best, is_compiled=False, is_repeated=True)
    except (Disagreement, LowerError):
        _clear(run.work, run.artefact.parent)  # the full run that follows finds the reason
        run.repair.keep_subnormals = options.is_exact_below_normal
        return None
    outcome = replace(memo.outcome, latency_us=latencies_us(decided[0], memo.outcome.shipped), options=options.stored())
    return finish(run, outcome, checked, best)


def _searched(run: Run, notes: tuple[str, ...]) -> Outcome:
    """Search, time, compile, check and save. ``notes`` are the notes from reading the model."""
    options, progress = run.options, run.progress
    rules: Sequence[Rule | MergeRule] = choose_rules(
        options.rule_files, options.skip_rules, allow=options.allow, unsafe=options.unsafe_rules, tell=progress.note,
        gate=run.derivations.gate,
    )
    # Kernels are always timed without subnormal numbers, whatever the options say: on the normal numbers used, the time is the same.
    alone = replace(run.repair.compile_options, keep_subnormals=False)
    measurer = None
    if run.device.is_timed and not options.frozen:
        measurer = Measurer(
            run.database, run.device_key, alone, run.worker, options.seed, policy=options.policy.measure, tell_compiled=run.budget.compiled,
            seconds_to_compile=run.budget.seconds_to_compile,
        )
    trial = _trial(run, rules, measurer)
    model = run.calibrated(measurer)
    if measurer is not None and not trial.searched.choice.is_earlier:
        plain, key = trial.plain, trial.search_key
        trial = run.repair.noticed(trial, measurer, model, lambda other: timed(run, other, plain, key, is_measured=True))
        trial = _resumed(run, trial, measurer, model)
        run.file(trial.searched, key, is_timed=trial.is_timed)
    while True:
        compared = run.rounding.described(trial, model) if OFFERED[options.precision] else ({}, "")
        started_seconds = run.budget.spent_seconds
        try:
            is_repeated = options.frozen or trial.searched.choice.is_earlier
            checked = save_and_check(run, trial.best, is_compiled=True, is_repeated=is_repeated)
            break
        except Disagreement as error:
            took_seconds = run.budget.spent_seconds - started_seconds
            has_time = is_repeated or run.progress.left_seconds > took_seconds  # another check takes about as long as this one
            if has_time and (kept := checked_with_subnormals(run, error, trial.best, is_repeated=is_repeated)):
                checked, note = kept
                run.repair.learnt.append(note)
                break
            if trial.best is None:
                raise
            _clear(run.artefact.parent)
            trial, rules = _given_up(run, error, trial, trial.best, rules, measurer)
            if not has_time:
                trial = unchecked(trial, run.folder, options.policy.race)
    plan = stages.dumped(options.dump_folder, Artefact.open(run.artefact).plan)
    outcome = describe(
        trial, run.graph, model, checked, rules, run.derivations, options, is_timed=run.device.is_timed,
        notes=notes, arena_bytes=plan.arena_bytes, keeps_subnormals=plan.keep_subnormals, model_digest=run.model_digest.result(),
    )  # fmt: skip
    findings = [*unoffered(trial.searched, model), *undecided(run, trial)]
    for text in findings:
        progress.note(text)
    outcome = replace(outcome, notes=(*outcome.notes, *findings, *run.repair.notes), check_notes=tuple(run.repair.learnt))
    outcome = replace(outcome, precisions=compared[0], precision_note=compared[1])
    _remember(run, trial, outcome)
    return finish(run, outcome, checked, trial.best)


def _clear(*folders: Path) -> None:
    """Delete the contents of folders of compiled or saved files."""
    for folder in folders:
        shutil.rmtree(folder)
        folder.mkdir()


def _remember(run: Run, trial: Trial, outcome: Outcome) -> None:
    """Write a memo of the program that the search led to, if the profile database holds the search that it relies on."""
    path = memo_path(run.model_digest.result() + run.ranges.key, outcome.device, run.options)
    if path is not None and read_search(run.database, outcome.device, trial.search_key) is not None:
        digests = {ORIGINAL: outcome.model_digest, **{e.contender.name: e.contender.digest for e in trial.entries}}
        contenders = tuple((name, digests[name]) for name in trial.preferred)
        program = next((e.program for e in trial.entries if trial.best and e.contender == trial.best.contender), None)
        write_memo(path, Memo(outcome, program, trial.search_key, choices_digest(trial.searched.text), contenders))


def _trial(run: Run, rules: Sequence[Rule | MergeRule], measurer: Measurer | None) -> Trial:
    """Search, compile and time the finalists."""
    options, progress = run.options, run.progress
    plain = plain_program(run.graph, run.prices(run.lowering.speed or DeviceSpeed()), seed=options.seed)
    accepted_error = (str(options.tolerance.relative), run.ranges.key) if options.precision in CONSTRAINED else ()
    key = search_key(run.graph, rules, options, (*run.derivations.decisive(), run.lowering.generator_digest, *accepted_error))
    earlier = usable_search(run.database, run.device_key, key, options)
    calibration: list[Program] = []
    folded: list[Program] = []
    if measurer is not None and earlier is None:
        run.worker.start(options.threads)
        left_seconds = run.budget.left_seconds
        folded = [run.folder.fold(plain)]
        run.budget.folded(left_seconds - run.budget.left_seconds)
        calibration = calibration_programs(run.database, run.device_key, run.lowering.target, seed=options.seed)
    with compiling_ahead(
        run.work, run.repair.compile_options, run.budget.compiled, options.policy.measure, run.budget.compiling_seconds
    ) as ahead:
        if folded:
            ahead.start([*calibration, *folded], library_sources(run.repair.outline.graph, run.lowering.target))

        def calibrated() -> CostModel:
            ahead.end()  # nothing is measured while a compiler runs
            run.look_again()
            return run.calibrated(measurer)

        def prepare(jobs: Sequence[Job]) -> None:
            generated = (job for job in jobs if job.implementation.is_generated)
            programs = (kernel_program(job.fragment, job.implementation, seed=options.seed) for job in generated)
            ahead.start(chain(programs, calibration, folded), run.lowering.sources(job.implementation for job in jobs))

        def foresee(outline: Outline, frozen: FrozenEGraph, selection: Selection, is_learning: bool) -> float:
            model, left = run.calibrated(measurer), run.budget.measuring_seconds
            tolerances = run.rounding.foresee(outline, frozen, selection, model, left, is_learning=is_learning)
            run.budget.simulating_seconds = run.rounding.kept_seconds
            return tolerances

        searched = search(
            run.graph, rules, calibrated, measurer, run.budget,
            finalists=options.finalists, max_nodes=options.max_nodes, seed=options.seed, earlier=earlier,
            derivations=run.derivations.open(),
            rehearsal=None if measurer is None or earlier else run.repair.rehearsal(), outline=run.repair.outline,
            foresee=foresee if measurer is not None and options.precision in CONSTRAINED else None,
            prepare=prepare, is_prepared=lambda: not ahead.is_building,
        )  # fmt: skip
    if measurer is not None and not searched.choice.is_earlier:
        model = run.calibrated(measurer)
        searched = run.rounding.without_inaccurate(searched, model, options.finalists, run.budget.spare_seconds)
        searched = run.rounding.with_mixed(searched, model, options.finalists)
    run.file(stages.dumped_search(options.dump_folder, run.graph, searched), key)
    if earlier and searched.choice.is_earlier:
        progress.note(earlier.describe())
    elif measurer is not None and OFFERED[options.precision]:
        _measure_storage(run, searched, measurer)
    run.worker.close()
    for text in run.repair.notes:
        progress.note(text)
    return timed(run, searched, plain, key, is_measured=measurer is not None)


def _resumed(run: Run, trial: Trial, measurer: Measurer, model: CostModel) -> Trial:
    """Resume a search that ran out of time if the later stages left more time than expected; return the better trial.

    For example, a busy moment made a search end after 25 s of 55, with 37 of its kernels estimated. The run ended after 35 s.
    """
    if OFFERED[run.options.precision]:
        return trial  # which kernels may round is known only for the programs of one choice
    searched = trial.searched
    digests = {extracted_digest(entry.program) for entry in trial.entries}
    while is_cut_short(searched):
        run.look_again()
        measured = measurer.measured
        if run.budget.measuring_seconds() < LEAST_MEASURING_SECONDS:
            break
        rehearsal = replace(run.repair.rehearsal(), notes=[])
        searched = resume_search(
            searched, model, measurer, run.budget, rehearsal, finalists=run.options.finalists, seed=run.options.seed
        )
        run.worker.close()
        run.repair.notes.extend(text for text in rehearsal.notes if text not in run.repair.notes)
        programs = {program_digest(program) for program in searched.programs}
        if not programs <= digests:
            digests |= programs
            rival = timed(run, searched, trial.plain, trial.search_key, is_measured=True)
            trial = rival if gain(rival) > gain(trial) else trial
        if measurer.measured == measured:
            break
    return trial


def _measure_storage(run: Run, searched: Search, measurer: Measurer) -> None:
    """Time the kernels that the programs would use if values were stored in the precision that they are rounded to."""
    model, progress = run.calibrated(measurer), run.progress
    candidates = run.storage.candidates(searched.programs, model)
    kept_seconds = progress.left_seconds - run.options.policy.measure.stored_share * run.options.budget_seconds

    def time_left() -> float:
        return min(run.budget.spare_seconds(), progress.left_seconds - kept_seconds)

    measurer.measure_candidates(model, candidates, time_left, progress.update)


def _given_up(
    run: Run, error: Disagreement, trial: Trial, best: Entry, rules: Sequence[Rule | MergeRule], measurer: Measurer | None
) -> tuple[Trial, Sequence[Rule | MergeRule]]:
    """Return a trial without the cause of a failed check, or without the whole program if no cause is found."""
    if run.options.frozen:
        what = error.what if error.alone else f"{error.what}; {run.repair.blamed(error, best)}"
        raise CheckFailed(what, where=error.where, fix=error.fix) from error
    reason = f"its outputs differ: {error.what}"
    if run.repair.attempts < run.options.policy.check.attempts and run.progress.left_seconds >= run.repair.seconds:
        if other := run.repair.repaired(error, trial.searched, best, run.calibrated()):
            run.file(other, trial.search_key)
            return timed(run, other, trial.plain, trial.search_key, is_measured=True), rules
        right_rules = run.repair.without_wrong(rules, error, trial.searched, best)
        if right_rules is None:
            return without(trial, best, reason, run.folder, run.options.policy.race), rules
        rules = right_rules
        if run.progress.left_seconds > run.repair.seconds:
            return _trial(run, rules, measurer), rules
    run.repair.too_late(error, best)
    return without(trial, best, reason, run.folder, run.options.policy.race), rules
