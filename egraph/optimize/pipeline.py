"""The main job, stage by stage: read, search, time the finalists, check what was saved, publish."""

from __future__ import annotations

import hashlib
import importlib
import math
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from egraph.errors import CheckFailed, EinsatError, LowerError
from egraph.onnx.importer.halves import half_types
from egraph.onnx.importer.model_file import read_model
from egraph.optimize import original, stages
from egraph.optimize.admission import choose_derivations, choose_rules
from egraph.optimize.artefact import REPORT, export, finish_artefact, save_unchanged
from egraph.optimize.budget import Budget, worked_here
from egraph.optimize.byte_ranges import Ranges, compared_within, refuse_without_inputs
from egraph.optimize.check import CheckResult, Disagreement, open_original
from egraph.optimize.check_noise import RunModel, open_onnxruntime
from egraph.optimize.choice import program_digest
from egraph.optimize.compiling_ahead import compiling_ahead
from egraph.optimize.derivations import Deriver
from egraph.optimize.describe import describe, latencies_us
from egraph.optimize.folding import Folder
from egraph.optimize.gate import Gate
from egraph.optimize.job_export import import_profiles
from egraph.optimize.kernels import kernel_program
from egraph.optimize.measuring import Job, Measurer, calibrate, calibration_programs
from egraph.optimize.options import CONSTRAINED, OFFERED, Options
from egraph.optimize.outcome import Outcome
from egraph.optimize.outline import Outline
from egraph.optimize.output import Destination, check_report, destination, publish, staging, write_beside
from egraph.optimize.precision import Rounding, unoffered
from egraph.optimize.progress import Progress
from egraph.optimize.race import ESTIMATED_DEVICE, NO_TIME_TO_RACE, Contender, Race, doubt, not_raced, race, recorded_race
from egraph.optimize.records import (
    Earlier,
    Memo,
    choices_digest,
    memo_path,
    read_checked,
    read_memo,
    read_search,
    search_key,
    usable_search,
    write_checked,
    write_memo,
    write_search,
)
from egraph.optimize.reference import Answers, Reference, accepted, compared_in_float32, read
from egraph.optimize.repair import Repair
from egraph.optimize.repeats import outlined
from egraph.optimize.search import Search, is_cut_short, library_sources, plain_program, resume_search, search
from egraph.optimize.simulation import rounding_kernels
from egraph.optimize.storage import Storage, extracted_digest
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
    gain,
    unchecked,
    without,
)
from egraph.rule import MergeRule, Rule
from egraph.tensor import FrozenEGraph, Graph, Program, Selection
from lower.compile import PLAN, keep_subnormals
from lower.cost.model import CostModel
from lower.cost.prior import shipped
from lower.cost.rounding import ErrorModel
from lower.roofline import DeviceSpeed
from lower.targets import Lowering, lowering
from runtime import Session
from runtime.artefact import Artefact
from runtime.devices import Device, device
from runtime.measure import Worker
from runtime.profile import Database

LEAST_MEASURING_SECONDS = 2.0
"""Time for measuring below which a search that time ended is not resumed."""
TOGETHER_BELOW_BYTES = 1 << 30
"""Weights up to which the standard model is written while the artefact is."""


def optimize(options: Options, progress: Progress) -> Outcome:
    """Optimise a model and write the results; raises EinsatError, and then nothing is written."""
    refuse_without_inputs(options)
    output = destination(options.model, options.output)
    if options.report is not None:
        check_report(options.report)
    progress.stage("read the model")
    with original.at_sizes(options.model, options.shapes) as model, original.in_float32(model) as wide:
        return _optimize(replace(options, model=model), wide, output, progress)


def _optimize(options: Options, wide: Path, output: Destination, progress: Progress) -> Outcome:
    """Optimise a model whose sizes are fixed; ``wide``: the same in float32, where it computes in 16 bits."""
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
            options = replace(options, again=True)  # an earlier search chose without them
        with staging(output) as stage, Worker() as worker, target_lowering.kept_compilers():
            work = stage / "work"
            work.mkdir()
            results = stage / "results"
            results.mkdir()
            chosen = choose_derivations(options.skip_rules, allow=options.allow, enabled=options.derivations, partial=options.partial)
            reference = Reference(compared, imported.graph, user_inputs, runs, session, answers)
            deriver, folder = Deriver(chosen, Gate(database), options.tolerance), Folder(imported.graph)
            budget = Budget(
                progress, options.finalists + 2, options.checks, open_seconds, runs.run_seconds, runs.slowdown,
                given=len(user_inputs.files), policy=options.policy,
            )  # fmt: skip
            outline = outline_of(imported.graph, options)
            repair = Repair(options, progress, outline, reference, folder, budget, deriver, work, options.is_exact_below_normal)
            run = Run(
                options, progress, imported.graph, reference, database, worker, work, results / output.model.name,
                results / output.artefact.name, deriver, digest, budget, folder, repair, device(options.device), target_lowering,
                Rounding(reference.checked_samples, options.threads, options.device, folder.fold), Storage(target_lowering),
                Ranges(user_inputs.feeds, options.threads, user_inputs.key if options.precision == "int8" else ""),
            )  # fmt: skip
            outcome = run.repeated() or run.outcome(imported.notes + imported.hints + runs.notes + outline.notes)
            progress.stage("write")
            for path in results.glob("*.partial"):
                shutil.rmtree(path)
            files = [str(path) for path in publish(results, output)]
            if options.report is not None:
                write_beside(options.report, (output.artefact / REPORT).read_text(encoding="utf-8"), option="--report FILE")
                files.append(str(options.report))
            return replace(outcome, files=tuple(files), hints=imported.hints, seconds_total=progress.spent_seconds)


def _opened(model: Path, threads: int) -> tuple[Any, float]:
    """Open the model in onnxruntime; return it, and how long opening it again takes."""
    importlib.import_module("onnxruntime")
    return worked_here(lambda: open_original(model, threads))


def outline_of(graph: Graph, options: Options) -> Outline:
    """Return what is searched in place of a graph: with each of its equal blocks once.

    Where stages are written out, each is a program of the model: all of it is searched then.
    """
    return Outline(graph, graph) if options.dump_folder is not None else outlined(graph, options.policy.saturation.repeats)


@dataclass
class Run:
    """The context of one run, shared by its stages."""

    options: Options
    progress: Progress
    graph: Graph
    reference: Reference
    database: Database
    worker: Worker
    work: Path
    model_file: Path
    artefact: Path
    derivations: Deriver
    model_digest: Future[str]
    budget: Budget
    folder: Folder
    repair: Repair
    device: Device
    lowering: Lowering
    rounding: Rounding
    storage: Storage
    ranges: Ranges
    model: CostModel | None = None
    searches: int = 0
    """How often programs were extracted to be timed."""

    def repeated(self) -> Outcome | None:
        """Compile, check and save what the same command led to before; None where that is not known or has become wrong."""
        if not self.device.is_timed:
            return None  # a memo tells which program won a race
        options, device = self.options, self.device.key(self.options.threads)
        path = memo_path(self.model_digest.result() + self.ranges.key, device, options)
        memo = read_memo(path, self.graph) if path else None
        earlier = usable_search(self.database, device, memo.search_key, options) if memo else None
        if options.dump_folder or memo is None or earlier is None or choices_digest(earlier.choices) != memo.choices:
            return None
        contenders = [self._contender(name, digest) for name, digest in memo.contenders]
        raced, names = self._recorded_race(contenders, device, frozen=False), [c.name for c in contenders]
        if raced is None or self._may_tell_more(names, raced) or fastest(names, raced, options.policy.race) != memo.outcome.shipped:
            return None
        self.progress.note(earlier.describe())
        self.progress.stage("compile the program")
        self.repair.keep_subnormals = memo.outcome.keeps_subnormals
        try:
            best = None
            if memo.program is not None:
                shipped = next(contender for contender in contenders if contender.name == memo.outcome.shipped)
                best = Entry(shipped, memo.program).folded(self.folder)
            checked = self._save_and_check(best, is_compiled=False, is_repeated=True)
        except (Disagreement, LowerError):
            self._clear(self.work, self.artefact.parent)  # the full run finds the reason
            self.repair.keep_subnormals = options.is_exact_below_normal
            return None
        outcome = replace(memo.outcome, latency_us=latencies_us(raced, memo.outcome.shipped), options=options.stored())
        return self._finish(outcome, checked, best)

    def outcome(self, notes: tuple[str, ...]) -> Outcome:
        """Search, time, compile, check and save; ``notes`` are what reading the model said."""
        options, progress = self.options, self.progress
        rules: Sequence[Rule | MergeRule] = choose_rules(
            options.rule_files, options.skip_rules, allow=options.allow, unsafe=options.unsafe_rules, tell=progress.note,
            gate=self.derivations.gate,
        )
        device = stages.device_key(options, self.database)
        # A kernel's time is of one kind, whatever is asked for; on the normal numbers that it is measured with, both are equal.
        alone = replace(self.repair.compile_options, keep_subnormals=False)
        measurer = None
        if self.device.is_timed and not options.frozen:
            measurer = Measurer(
                self.database, device, alone, self.worker, options.seed, policy=options.policy.measure, tell_compiled=self.budget.compiled
            )
        trial = self._trial(rules, measurer, device)
        model = self._calibrated(measurer, device)
        if measurer is not None and not trial.searched.choice.is_earlier:
            plain, key = trial.plain, trial.search_key
            trial = self.repair.noticed(trial, measurer, model, lambda other: self._timed(other, plain, key, device, is_measured=True))
            trial = self._resumed(trial, measurer, model, device)
            self._file(trial.searched, key, device, is_timed=trial.is_timed)
        while True:
            compared = self.rounding.described(trial, model) if OFFERED[options.precision] else ({}, "")
            started_seconds = self.budget.spent_seconds
            try:
                is_repeated = options.frozen or trial.searched.choice.is_earlier
                checked = self._save_and_check(trial.best, is_compiled=True, is_repeated=is_repeated)
                break
            except Disagreement as error:
                took_seconds = self.budget.spent_seconds - started_seconds
                has_time = is_repeated or self.progress.left_seconds > took_seconds  # another check takes about as long
                if has_time and (kept := self._checked_with_subnormals(error, trial.best, is_repeated=is_repeated)):
                    checked, note = kept
                    self.repair.learnt.append(note)
                    break
                if trial.best is None:
                    raise
                self._clear(self.artefact.parent)
                trial, rules = self._given_up(error, trial, trial.best, rules, measurer, device)
                if not has_time:
                    trial = unchecked(trial, self.folder, options.policy.race)
        plan = stages.dumped(options.dump_folder, Artefact.open(self.artefact).plan)
        outcome = describe(
            trial, self.graph, model, checked, rules, self.derivations, options, is_timed=self.device.is_timed,
            notes=notes, arena_bytes=plan.arena_bytes, keeps_subnormals=plan.keep_subnormals, model_digest=self.model_digest.result(),
        )  # fmt: skip
        findings = [*unoffered(trial.searched, model), *self._doubt(trial)]
        for text in findings:
            progress.note(text)
        outcome = replace(outcome, notes=(*outcome.notes, *findings, *self.repair.notes), check_notes=tuple(self.repair.learnt))
        outcome = replace(outcome, precisions=compared[0], precision_note=compared[1])
        self._remember(trial, outcome)
        return self._finish(outcome, checked, trial.best)

    def _doubt(self, trial: Trial) -> Iterator[str]:
        """Yield what is known of a program that was ahead of the model, which is kept all the same."""
        if trial.best is None and self.device.is_timed:
            text = doubt(trial.preferred, trial.raced.timings, self.options.policy.race)
            if text:
                longer = f"--budget {self.progress.longer_seconds:.0f}s races for twice as long"
                yield f"{text}: too uncertain to ship it; other work on the machine makes times uncertain, and {longer}"

    def _finish(self, outcome: Outcome, checked: CheckResult, best: Entry | None) -> Outcome:
        """Add what the check found, and complete the artefact."""
        self.progress.update(f"largest relative error {checked.max_rel_err:.2g} on {checked}")
        shortage = f"results were compared on {checked}, not on {self.budget.inputs}: there was no time for more"
        short = (shortage,) if checked.is_short and checked.inputs < self.budget.inputs else ()
        for text in (*checked.amplified, *checked.refused, *checked.weak, *short):
            self.progress.note(text)
        check_notes = outcome.check_notes + checked.amplified + checked.refused + checked.weak + short
        inputs = {"given": checked.given, "random": checked.inputs - checked.given}
        outcome = replace(
            outcome, max_rel_err=checked.max_rel_err, worst_output=checked.worst_output, check_notes=check_notes, inputs=inputs,
        )  # fmt: skip
        finish_artefact(self.artefact, outcome, best.program if best else None, self.lowering, self.options.rule_files)
        return outcome

    def _clear(self, *folders: Path) -> None:
        """Forget what was compiled or saved."""
        for folder in folders:
            shutil.rmtree(folder)
            folder.mkdir()

    def _remember(self, trial: Trial, outcome: Outcome) -> None:
        """Keep which program the search led to, where the profile database can say again that it does."""
        path = memo_path(self.model_digest.result() + self.ranges.key, outcome.device, self.options)
        if path is not None and read_search(self.database, outcome.device, trial.search_key) is not None:
            digests = {ORIGINAL: outcome.model_digest, **{e.contender.name: e.contender.digest for e in trial.entries}}
            contenders = tuple((name, digests[name]) for name in trial.preferred)
            program = next((e.program for e in trial.entries if trial.best and e.contender == trial.best.contender), None)
            write_memo(path, Memo(outcome, program, trial.search_key, choices_digest(trial.searched.text), contenders))

    def _trial(self, rules: Sequence[Rule | MergeRule], measurer: Measurer | None, device: str) -> Trial:
        """Search, compile and time the finalists."""
        options, progress = self.options, self.progress
        plain = plain_program(self.graph, self._prices(device, self.lowering.speed or DeviceSpeed()), seed=options.seed)
        accepted_error = (str(options.tolerance.relative), self.ranges.key) if options.precision in CONSTRAINED else ()
        key = search_key(self.graph, rules, options, (*self.derivations.decisive(), self.lowering.generator_digest, *accepted_error))
        earlier = usable_search(self.database, device, key, options)
        calibration: list[Program] = []
        folded: list[Program] = []
        if measurer is not None and earlier is None:
            self.worker.start(options.threads)
            left_seconds = self.budget.left_seconds
            folded = [self.folder.fold(plain)]
            self.budget.folded(left_seconds - self.budget.left_seconds)
            calibration = calibration_programs(self.database, device, self.lowering.target, seed=options.seed)
        with compiling_ahead(
            self.work, self.repair.compile_options, self.budget.compiled, options.policy.measure, self.budget.compiling_seconds
        ) as ahead:
            if folded:
                ahead.start([*calibration, *folded], library_sources(self.repair.outline.graph, self.lowering.target))

            def calibrated() -> CostModel:
                ahead.end()  # nothing is measured beside a compiler
                self._look_again()
                self.budget.foresee(folded, self.repair.compile_options)
                if measurer is not None:
                    measurer.compile_seconds = self.budget.seconds_to_compile(1)
                return self._calibrated(measurer, device)

            def prepare(jobs: Sequence[Job]) -> None:
                generated = (job for job in jobs if job.implementation.is_generated)
                programs = (kernel_program(job.fragment, job.implementation, seed=options.seed) for job in generated)
                ahead.start(chain(programs, calibration, folded), self.lowering.sources(job.implementation for job in jobs))

            def foresee(outline: Outline, frozen: FrozenEGraph, selection: Selection, is_learning: bool) -> float:
                model, left = self._calibrated(measurer, device), self.budget.measuring_seconds
                tolerances = self.rounding.foresee(outline, frozen, selection, model, left, is_learning=is_learning)
                self.budget.simulating_seconds = self.rounding.kept_seconds
                return tolerances

            searched = search(
                self.graph, rules, calibrated, measurer, self.budget,
                finalists=options.finalists, max_nodes=options.max_nodes, seed=options.seed, earlier=earlier,
                derivations=self.derivations.open(),
                rehearsal=None if measurer is None or earlier else self.repair.rehearsal(), outline=self.repair.outline,
                foresee=foresee if measurer is not None and options.precision in CONSTRAINED else None,
                prepare=prepare, is_prepared=lambda: not ahead.is_building,
            )  # fmt: skip
        if measurer is not None and not searched.choice.is_earlier:
            model = self._calibrated(measurer, device)
            searched = self.rounding.without_inaccurate(searched, model, options.finalists, self.budget.spare_seconds)
            searched = self.rounding.with_mixed(searched, model, options.finalists)
        self._file(stages.dumped_search(options.dump_folder, self.graph, searched), key, device)
        if earlier and searched.choice.is_earlier:
            progress.note(earlier.describe())
        elif measurer is not None and OFFERED[options.precision]:
            self._measure_storage(searched, measurer, device)
        self.worker.close()
        for text in self.repair.notes:
            progress.note(text)
        return self._timed(searched, plain, key, device, is_measured=measurer is not None)

    def _resumed(self, trial: Trial, measurer: Measurer, model: CostModel, device: str) -> Trial:
        """Resume a search that time ended, where what came after it took less than was foreseen; return the better trial.

        A moment that was busy made a search end after 25 s of 55, with 37 of its kernels estimated, and the run after 35.
        """
        if OFFERED[self.options.precision]:
            return trial  # which kernels may round is known of the programs of one choice
        searched = trial.searched
        digests = {extracted_digest(entry.program) for entry in trial.entries}
        while is_cut_short(searched):
            self._look_again()
            measured = measurer.measured
            if self.budget.measuring_seconds() < LEAST_MEASURING_SECONDS:
                break
            rehearsal = replace(self.repair.rehearsal(), notes=[])
            searched = resume_search(
                searched, model, measurer, self.budget, rehearsal, finalists=self.options.finalists, seed=self.options.seed
            )
            self.worker.close()
            self.repair.notes.extend(text for text in rehearsal.notes if text not in self.repair.notes)
            programs = {program_digest(program) for program in searched.programs}
            if not programs <= digests:
                digests |= programs
                rival = self._timed(searched, trial.plain, trial.search_key, device, is_measured=True)
                trial = rival if gain(rival) > gain(trial) else trial
            if measurer.measured == measured:
                break
        return trial

    def _measure_storage(self, searched: Search, measurer: Measurer, device: str) -> None:
        """Time the kernels that programs would have whose values are stored in the precision that they are rounded to."""
        model, progress = self._calibrated(measurer, device), self.progress
        candidates = self.storage.candidates(searched.programs, model)
        kept_seconds = progress.left_seconds - self.options.policy.measure.stored_share * self.options.budget_seconds

        def time_left() -> float:
            return min(self.budget.spare_seconds(), progress.left_seconds - kept_seconds)

        measurer.measure_candidates(model, candidates, time_left, progress.update)

    def _stored(self, searched: Search, device: str) -> Search:
        """Return what a search found with values stored in the precision that they are rounded to, where that is faster, and ranges."""
        if not OFFERED[self.options.precision]:
            return searched
        model = self._calibrated(None, device)
        ranged = map(self.ranges.applied, searched.programs)
        return replace(searched, programs=tuple(self.storage.applied(program, model) for program in ranged))

    def _file(self, searched: Search, key: str, device: str, *, is_timed: bool = True) -> None:
        """Keep what a search chose for the same command again, which searches on where none of its programs ``is_timed``."""
        if self.device.is_timed and not self.options.frozen and not searched.choice.is_earlier:
            counts = len(searched.saturation.iterations), searched.choice.kernels_unmeasured
            budget_seconds = self.options.budget_seconds if is_timed else 0.0
            filed = Earlier(*counts, budget_seconds, searched.text, searched.choice.refused, searched.saturation.looks)
            write_search(self.database, device, key, filed)

    def _timed(self, searched: Search, plain: Program, key: str, device: str, *, is_measured: bool) -> Trial:
        """Compile the programs of a search, look at their results, and time them; what differs is replaced by other programs."""
        options, progress, choice = self.options, self.progress, searched.choice
        progress.stage("time the finalists" if self.device.is_timed else "compile the program")
        keep = self.repair.keep_subnormals
        self.searches += 1
        entries = entries_of(self._stored(searched, device), plain, self.work, self.searches, keep_subnormals=keep)
        path = str(options.model.absolute())
        contenders = [Contender(ORIGINAL, self.model_digest.result(), "onnxruntime", path, keep_subnormals=keep)]
        contenders += [entry.contender for entry in by_importance(entries)]
        if not self.device.is_timed:
            failed: dict[str, str] = {}
            estimated = not_raced(contenders, ESTIMATED_DEVICE)
            while (best := cheapest(entries, estimated)) is not None:
                best = best.folded(self.folder)
                compile_entry(best, self.repair.compile_options)
                if (closer := self._within(searched, [best], failed, self._calibrated(None, device))) is not None:
                    return self._timed(closer, plain, key, device, is_measured=is_measured)
                if best.contender.name not in failed:
                    break
                estimated = not_raced(contenders, ESTIMATED_DEVICE, failed)
            return Trial(searched, plain, tuple(entries), estimated, best, key)
        raced = None if is_measured and not choice.is_earlier else self._recorded_race(contenders, device, frozen=options.frozen)
        preferred, policy = by_preference(entries, self.derivations.errors()), options.policy.race
        if raced and self._may_tell_more(preferred, raced):
            raced = None
        best = entry_named(fastest(preferred, raced, policy), entries) if raced else None
        if raced and best:
            best = best.folded(self.folder)
            try:
                compile_entry(best, self.repair.compile_options)
            except EinsatError:
                raced = None  # it could be compiled once: decide for each program again
        if raced is None:
            self._look_again()
            sizes_bytes, failed = self._compiled(by_importance(entries))
            if (closer := self._within(searched, entries, failed, self._calibrated(None, device))) is not None:
                self._file(closer, key, device)
                return self._timed(closer, plain, key, device, is_measured=is_measured)
            others = entries[1:]
            if others and failed.keys() >= {entry.contender.name for entry in others}:  # what was compiled first was too far off
                exact = [entry for entry in others if not rounding_kernels(entry.program)]
                late = [entry for entry in exact if failed[entry.contender.name] == NO_TIME_TO_COMPILE]
                more_bytes, still_failed = self._compiled(late)
                sizes_bytes |= more_bytes
                failed = {name: reason for name, reason in failed.items() if name not in more_bytes} | still_failed
            for entry in by_importance(entries):
                error = None if entry.contender.name in (PLAIN, *failed) else self.repair.tested(entry)
                if error is not None and (other := self.repair.repaired(error, searched, entry, self._calibrated(None, device))):
                    self._file(other, key, device)
                    return self._timed(other, plain, key, device, is_measured=is_measured)
                if error is not None:
                    failed[entry.contender.name] = f"its outputs differ: {error.what}"
            largest_bytes = max(sizes_bytes.values(), default=0)
            contenders = [replace(c, size_bytes=sizes_bytes.get(c.name, sizes_bytes.get(PLAIN, largest_bytes))) for c in contenders]
            raced = self._raced(contenders, failed, preferred, device)
            best = entry_named(fastest(preferred, raced, policy), entries)
            best = best and best.folded(self.folder)
            self.budget.quiet_run_seconds = min(self.budget.quiet_run_seconds, raced.median_us(ORIGINAL) / 1e6)
        return Trial(searched, plain, tuple(entries), raced, best, key, preferred)

    def _look_again(self) -> None:
        """Learn how busy the machine is now."""
        feeds = dict(self.reference.raced_feeds)
        self.budget.look_again(lambda: self.reference.session.run(None, feeds))

    def _compiled(self, entries: Sequence[Entry]) -> tuple[dict[str, int], dict[str, str]]:
        return compile_all(entries, self.folder, self.budget, self.work, self.repair.compile_options)

    def _raced(self, contenders: Sequence[Contender], failed: dict[str, str], preferred: Sequence[str], device: str) -> Race:
        """Time the contenders in what the check leaves of the budget; where that is not enough, none but the original has a time."""
        options, budget, policy = self.options, self.budget, self.options.policy.race
        seconds = budget.racing_seconds
        if seconds < budget.least_race_seconds:
            return not_raced(contenders, NO_TIME_TO_RACE, failed, {ORIGINAL: budget.run_seconds})
        return race(
            contenders, self.reference.runs.specs, failed=failed, preferred=preferred, essential=ORIGINAL,
            inputs=self.reference.given.raced, threads=options.threads, seed=options.seed, database=self.database, device=device,
            seconds=min(policy.share * options.budget_seconds, seconds), most_seconds=seconds, run_seconds=budget.run_seconds,
            generator=self.lowering.generator_digest, policy=policy,
        )  # fmt: skip

    def _within(self, searched: Search, entries: Sequence[Entry], failed: dict[str, str], model: CostModel) -> Search | None:
        """Measure how far programs that round are off; return others where the best is too far off and there is time for them.

        What is too far off has ``failed``.
        """
        limit, ordered = self.options.tolerance.relative, by_importance(entries)
        errors: dict[str, float] = {}
        for entry in ordered:
            count, name = len(rounding_kernels(entry.program)), entry.contender.name
            if count and name not in failed:
                errors[name] = self.rounding.measure(entry, model)
                if errors[name] > limit:
                    reason = f"{count} kernels round, and its outputs are off by {errors[name]:.2g} of the largest, more than {limit:g}"
                    failed[name] = reason
        best, name = ordered[0], ordered[0].contender.name
        if errors.get(name, 0.0) <= limit or self.options.frozen:
            return None
        within_us = min((e.program.cost_us for e in ordered if errors.get(e.contender.name, math.inf) <= limit), default=math.inf)
        extract_seconds = searched.space.seconds if searched.space else 0.0

        def time_left() -> float:
            return self.progress.left_seconds - self.repair.seconds - extract_seconds

        has_time = time_left() > 0 and math.isinf(within_us)
        if has_time and best.contender.digest in self.storage.adds_error:
            self.progress.note(f"{name}: {failed[name]}; values that are not rounded anyway are stored in float32")
            self.storage.is_exact = True
            return searched
        closer: Search | None = None
        if self.rounding.knows(searched):
            if self.budget.has_time_to_ship() and self.rounding.raise_kernels(searched, best, errors[name], model, time_left):
                closer = self.rounding.mixed_alone(searched, model, self.options.finalists, within_us)
        elif has_time and self.rounding.raise_kernels(searched, best, errors[name], model, time_left):
            closer = self.rounding.with_mixed(self.repair.extracted(searched, model), model, self.options.finalists)
        if closer is not None:
            self.progress.note(f"{name}: {failed[name]}; those that move outputs most return to float32")
        return closer

    def _contender(self, name: str, digest: str) -> Contender:
        return Contender(name, digest, "einsat", str(self.work / name.replace(" ", "-")), keep_subnormals=self.repair.keep_subnormals)

    def _may_tell_more(self, preferred: Sequence[str], raced: Race) -> bool:
        """Return whether another race may decide what this one left open: a program was ahead, and its rounds proved too little."""
        return not self.options.frozen and bool(doubt(preferred, raced.timings, self.options.policy.race))

    def _recorded_race(self, contenders: Sequence[Contender], device: str, *, frozen: bool) -> Race | None:
        runs, inputs = self.reference.runs, self.reference.given.raced
        return recorded_race(
            contenders, runs.specs, database=self.database, device=device, frozen=frozen, inputs=inputs,
            generator=self.lowering.generator_digest,
        )  # fmt: skip

    def _calibrated(self, measurer: Measurer | None, device: str) -> CostModel:
        """Return the cost model, calibrated where it is first needed."""
        if self.model is None:
            if self.device.is_timed:
                self.progress.stage("calibrate")
            target, has_time = self.lowering.target, lambda: self.budget.measuring_seconds() > 0
            speed = calibrate(self.database, device, target, measurer, has_time=has_time)
            self.model = self._prices(device, speed)
        return self.model

    def _derived_errors(self) -> dict[str, float]:
        """Return the usual relative error of each derivation, by its name."""
        return {name: self.options.policy.check.layer * error for name, error in self.derivations.errors().items()}

    def _prices(self, device: str, speed: DeviceSpeed) -> CostModel:
        weights_bytes = sum(array.nbytes for array in self.graph.tensors.values())
        outputs = hashlib.sha256(" ".join(node.digest for node in self.graph.roots).encode()).hexdigest()[:16]
        is_from_memory = not self.device.stays_in_cache(weights_bytes)
        return CostModel(
            self.database, device, speed, is_from_memory, model=outputs, target=stages.target_of(self.options, self.lowering),
            policy=self.options.policy.cost, prior=shipped(self.lowering.target.kind),
            errors=ErrorModel(self.options.tolerance, derived=self._derived_errors) if self.options.precision in CONSTRAINED else None,
        )  # fmt: skip

    def _save_and_check(self, best: Entry | None, *, is_compiled: bool, is_repeated: bool) -> CheckResult:
        """Write the artefact and, at the same time, the standard model; compare both with the original."""
        weights = best.program.graph.tensors if best else self.graph.tensors
        with ThreadPoolExecutor(1) as aside:
            original_file, threads = self.options.model, self.options.threads
            exporting = aside.submit(export, best.program if best else None, original_file, self.model_file, threads)
            if sum(array.nbytes for array in weights.values()) > TOGETHER_BELOW_BYTES:
                exporting.result()  # both at once would keep too much in memory
            if best is None:
                save_unchanged(self.graph, original_file, self.artefact, keep_subnormals=self.repair.keep_subnormals)
            elif not is_compiled or not Path(best.contender.path).exists():  # of a race that was read, only the winner was compiled
                compile_entry(best, self.repair.compile_options)
            if best is not None:
                Path(best.contender.path).rename(self.artefact)
            self.progress.stage("check the saved files")
            with Session(self.artefact, threads=threads, on=self.options.device) as session:
                return self._check(session, exporting.result(), best, is_repeated=is_repeated)

    def _checked_with_subnormals(self, error: Disagreement, best: Entry | None, *, is_repeated: bool) -> tuple[CheckResult, str] | None:
        """Keep subnormal numbers in the artefact where its check failed without them; return the result of the check then."""
        if self.repair.keep_subnormals or not (self.artefact / PLAN).exists():
            return None
        keep_subnormals(self.artefact)
        saved = open_onnxruntime(self.model_file, self.options.threads)
        try:
            with Session(self.artefact, threads=self.options.threads, on=self.options.device) as session:
                checked = self._check(session, saved, best, is_repeated=is_repeated)
        except Disagreement:
            return None  # there is another reason: it is searched without them
        note = f"subnormal numbers are kept: with zeros for them, as the programs were timed, the check failed ({error.what})"
        self.progress.note(f"warning: {note}")
        return checked, note

    def _given_up(
        self, error: Disagreement, trial: Trial, best: Entry, rules: Sequence[Rule | MergeRule], measurer: Measurer | None, device: str
    ) -> tuple[Trial, Sequence[Rule | MergeRule]]:
        """Return a trial without what made a check fail, or without the program where nothing is found to be left out."""
        if self.options.frozen:
            what = error.what if error.alone else f"{error.what}; {self.repair.blamed(error, best)}"
            raise CheckFailed(what, where=error.where, fix=error.fix) from error
        reason = f"its outputs differ: {error.what}"
        if self.repair.attempts < self.options.policy.check.attempts and self.progress.left_seconds >= self.repair.seconds:
            if other := self.repair.repaired(error, trial.searched, best, self._calibrated(None, device)):
                self._file(other, trial.search_key, device)
                return self._timed(other, trial.plain, trial.search_key, device, is_measured=True), rules
            right_rules = self.repair.without_wrong(rules, error, trial.searched, best)
            if right_rules is None:
                return without(trial, best, reason, self.folder, self.options.policy.race), rules
            rules = right_rules
            if self.progress.left_seconds > self.repair.seconds:
                return self._trial(rules, measurer, device), rules
        self.repair.too_late(error, best)
        return without(trial, best, reason, self.folder, self.options.policy.race), rules

    def _check(self, session: Session, saved: Any, best: Entry | None, *, is_repeated: bool) -> CheckResult:
        """Compare the artefact, and the standard model where it is not the original itself, with the original.

        What is ``is_repeated`` is compared on as many inputs as before, whatever time that takes: it has to come out the same.
        """
        device, digest = self.device.key(self.options.threads), self.model_digest.result() + self.reference.given.key
        checked_before = read_checked(self.database, device, digest) if is_repeated else None
        started_seconds = self.budget.spent_seconds

        def goes_on(inputs: int) -> bool:
            if is_repeated:
                return checked_before is None or inputs < checked_before
            return self.budget.may_check((self.budget.spent_seconds - started_seconds) / inputs)

        candidates: dict[str, RunModel] = {self.artefact.name: lambda feeds: session.run(None, feeds)}
        if saved is not None:
            candidates = {self.model_file.name: lambda feeds: saved.run(None, feeds), **candidates}
        result = self.repair.compared(candidates, goes_on, self.options.checks, best)
        if not is_repeated:
            write_checked(self.database, device, digest, result.inputs if result.is_short else None)
        return result
