"""The main job, stage by stage: read, search, time the finalists, check what was saved, publish."""

from __future__ import annotations

import platform
import shutil
import statistics
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from egraph import __version__, exporter, importer
from egraph.check import CheckResult, Disagreement, check, find_feeds, open_onnxruntime
from egraph.cost import FREE, CostModel
from egraph.errors import CheckFailed, EinsatError, ModelError
from egraph.finalists import Contender, Race, race, remembered
from egraph.ir import Graph, Program, format_fragment
from egraph.optimize import original
from egraph.optimize.artefact import finish_artefact
from egraph.optimize.batch import compile_ahead
from egraph.optimize.blame import blame
from egraph.optimize.choice import choose_derivations, choose_rules
from egraph.optimize.derivations import Gate
from egraph.optimize.folding import Folder
from egraph.optimize.gate import notes as rule_notes
from egraph.optimize.gate import unproved
from egraph.optimize.instances import wrong_rules
from egraph.optimize.kernel_rows import kernel_rows
from egraph.optimize.measuring import Measurer, calibrate
from egraph.optimize.options import Options
from egraph.optimize.outcome import Finalist, Growth, Outcome, RuleUse
from egraph.optimize.output import destination, publish, staging, write_beside
from egraph.optimize.progress import Progress
from egraph.optimize.remembered import Earlier, read_search, search_key, write_search
from egraph.optimize.search import Search, plain_program, program_digest, search
from egraph.rule import MergeRule, Rule
from egraph.saturate import Limits
from lower.compile import CompileOptions, compile_model, compile_program
from lower.eoperator.process import Compiler, kept_compiler
from runtime import Session
from runtime.artefact import Artefact
from runtime.feeds import FeedSpec
from runtime.measure import Worker
from runtime.profile import Database, Record, device_key
from runtime.profile.device import library_version

ORIGINAL, PLAIN = "onnxruntime", "unoptimized"
RACE_SHARE = 0.25
"""Part of the budget for timing whole programs (at least until every contender has run a few times)."""
ATTEMPTS = 3
"""Searches at most: after a failed check, the kernels or rules to blame are left out."""
LIBRARIES = ("egglog", "onnx", "onnxruntime", "onednn-cpu-gomp", "apache-tvm", "ortools", "numpy")


@dataclass(frozen=True)
class Entry:
    """A program that takes part in the race; its contender's path is where it is compiled to."""

    contender: Contender
    program: Program

    def folded(self, folder: Folder) -> Entry:
        """Return the entry with what its program derives from weights computed: what can be compiled and saved."""
        return replace(self, program=folder.fold(self.program))


def optimize(options: Options, progress: Progress) -> Outcome:
    """Optimise a model and write the results; raises EinsatError, and then nothing is written."""
    rules = choose_rules(
        options.rule_files, options.skip_rules, allow=options.allow, unsafe=options.unsafe_rules, tell=progress.note
    )
    derivations = choose_derivations(options.skip_rules, allow=options.allow, enabled=options.derivations)
    place = destination(options.model, options.output)
    progress.stage("read the model")
    imported = importer.load(options.model, shapes=options.shapes)
    for text in (*imported.notes, *imported.hints):
        progress.note(text)
    reference = open_onnxruntime(options.model, options.threads)
    feeds = find_feeds(reference, imported.graph, options.seed)
    database = Database.open(options.database, read_only=options.frozen, warn=lambda text: progress.note(f"warning: {text}"))
    try:
        with staging(place) as stage, Worker() as worker, kept_compiler() as compiler, ThreadPoolExecutor(1) as aside:
            digest = aside.submit(original.digest, options.model)  # it need not wait for the search
            work = stage / "work"
            work.mkdir()
            results = stage / "results"
            results.mkdir()
            gate = Gate(derivations, database, options.tolerance)
            run = Run(options, progress, imported.graph, feeds, database, worker, compiler, work, gate, digest)
            outcome = run.outcome(rules, results, place.model.name, place.artefact.name, reference, imported.notes + imported.hints)
            progress.stage("write")
            for path in results.glob("*.partial"):
                shutil.rmtree(path)
            files = [str(path) for path in publish(results, place)]
            if options.report is not None:
                write_beside(options.report, (place.artefact / "report.html").read_text(encoding="utf-8"))
                files.append(str(options.report))
            return replace(outcome, files=tuple(files), seconds_total=progress.spent_seconds)
    finally:
        database.close()


@dataclass(frozen=True)
class Trial:
    """One search with its race: what was found, what was timed, and what is best (None: onnxruntime on the original)."""

    found: Search
    plain: Program
    entries: tuple[Entry, ...]
    raced: Race
    best: Entry | None


@dataclass
class Run:
    """One run's surroundings, shared by its stages."""

    options: Options
    progress: Progress
    graph: Graph
    feeds: tuple[FeedSpec, ...]
    database: Database
    worker: Worker
    compiler: Compiler
    work: Path
    derivations: Gate
    model_digest: Future[str]

    @property
    def compile_options(self) -> CompileOptions:
        def export_graph(graph: Graph) -> bytes:
            model: bytes = exporter.export(graph).SerializeToString(deterministic=True)
            return model

        return CompileOptions(threads=self.options.threads, export_graph=export_graph)

    def outcome(
        self,
        rules: Sequence[Rule | MergeRule],
        results: Path,
        model_name: str,
        artefact_name: str,
        reference: Any,
        notes: tuple[str, ...],
    ) -> Outcome:
        options, progress = self.options, self.progress
        device = device_key(options.threads)
        measurer = None if options.frozen else Measurer(self.database, device, self.compile_options, self.worker, options.seed)
        progress.stage("calibrate")
        model = CostModel(self.database, device, calibrate(self.database, device, measurer))
        artefact, model_file = results / artefact_name, results / model_name
        learnt: tuple[str, ...] = ()
        for attempt in range(1, ATTEMPTS + 1):
            trial = self._trial(rules, model, measurer, device)
            self._save(trial.best, model_file, artefact)
            progress.stage("check the saved files")
            try:
                checked = self._check(model_file, artefact, reference)
                break
            except Disagreement as error:
                if trial.best is None:
                    raise
                rules, told = self._learn(error, trial, trial.best, rules, model, may_retry=attempt < ATTEMPTS and not options.frozen)
                learnt += (told,)
                for folder in (self.work, results):
                    shutil.rmtree(folder)
                    folder.mkdir()
        progress.update(f"largest relative error {checked.max_rel_err:.2g} on {checked.inputs} random inputs")
        for text in (*checked.amplified, *checked.weak):
            progress.note(text)
        arena_bytes = Artefact.open(artefact).plan.arena_bytes
        said = learnt + checked.amplified + checked.weak
        outcome = replace(self._describe(trial, model, checked, rules, notes, arena_bytes), check_notes=said)
        finish_artefact(artefact, outcome, trial.best.program if trial.best else None, options.rule_files)
        return outcome

    def _trial(self, rules: Sequence[Rule | MergeRule], model: CostModel, measurer: Measurer | None, device: str) -> Trial:
        """Search, compile and time the finalists."""
        options, progress = self.options, self.progress
        plain = plain_program(self.graph, model, seed=options.seed)
        key = search_key(self.graph, rules, options, self.derivations.told())
        earlier = read_search(self.database, device, key)
        if earlier and not options.frozen and (options.again or earlier.budget_seconds < options.budget_seconds):
            earlier = None
        if measurer is not None and earlier is None:
            self.compiler.start()  # it loads while this process saturates
        found = search(
            self.graph, rules, model, measurer, progress,
            finalists=options.finalists, max_nodes=options.max_nodes, seed=options.seed, earlier=earlier,
            derivations=self.derivations.open(),
        )  # fmt: skip
        choice = found.choice
        if earlier and choice.is_earlier:
            progress.note(earlier.told())
        elif not options.frozen:
            counts = len(found.saturation.iterations), choice.kernels_unmeasured
            write_search(self.database, device, key, Earlier(*counts, options.budget_seconds, found.text, choice.refused))
        self.worker.close()
        progress.stage("time the finalists")
        entries = [
            Entry(Contender(name, program_digest(program), "einsat", str(self.work / name.replace(" ", "-"))), program)
            for name, program in [(PLAIN, plain), *((f"program {i}", p) for i, p in enumerate(found.programs, start=1))]
        ]
        contenders = [Contender(ORIGINAL, self.model_digest.result(), "onnxruntime", str(options.model.absolute()))]
        contenders += [entry.contender for entry in entries]
        raced = remembered(contenders, self.feeds, database=self.database, device=device, frozen=options.frozen)
        best = self._fastest(entries, raced) if raced else None
        folder = Folder(self.graph)
        if raced and best:
            best = best.folded(folder)
            try:
                self._compile(best)
            except EinsatError:
                raced = None  # it could be compiled once: say of each program again which can
        if raced is None:
            entries = [entry.folded(folder) for entry in entries]
            sizes_bytes, failed = self._compile_all(entries)
            contenders = [replace(c, size_bytes=sizes_bytes.get(c.name, sizes_bytes[PLAIN])) for c in contenders]
            raced = race(
                contenders, self.feeds, failed=failed, essential=ORIGINAL,
                threads=options.threads, seed=options.seed, database=self.database, device=device,
                seconds=max(2.0, min(RACE_SHARE * options.budget_seconds, progress.left_seconds)),
            )  # fmt: skip
            best = self._fastest(entries, raced)
        return Trial(found, plain, tuple(entries), raced, best)

    def _save(self, best: Entry | None, model_file: Path, artefact: Path) -> None:
        options = self.options
        if best is None:
            original.copy_model(options.model, model_file)
            compile_model(self.graph, options.model.read_bytes(), artefact)
            for name in original.external_files(options.model):
                (artefact / "opaque" / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(options.model.parent / name, artefact / "opaque" / name)
        else:
            Path(best.contender.path).rename(artefact)
            exporter.save(best.program, model_file, rules={k.output: k.rules for k in best.program.kernels if k.rules})

    def _learn(
        self, error: Disagreement, trial: Trial, best: Entry, rules: Sequence[Rule | MergeRule], model: CostModel, *, may_retry: bool
    ) -> tuple[Sequence[Rule | MergeRule], str]:
        """Leave out what made the check fail; raises CheckFailed with its names when that is not known, or not for the first time."""
        found = blame(self.graph, best.program, error.feeds, self.compile_options)
        if not found.kernels:
            limits = Limits(float("inf"), self.options.max_nodes, len(trial.found.saturation.iterations))
            derived = tuple(use.name for use in self.derivations.uses(best.program.kernels))
            found = replace(found, rules=tuple(wrong_rules(self.graph, rules, limits, seed=self.options.seed)) or found.rules or derived)
        if not may_retry or not (found.kernels or found.rules):
            raise CheckFailed(f"{error.what}; {found}", where=error.where, fix=error.fix) from error
        for kernel, reason in found.kernels:
            model.file(Record(model.device, format_fragment(kernel.fragment), kernel.implementation, "wrong", (), reason))
        dropped = () if found.kernels else found.rules
        self.derivations.leave_out(dropped, f"a program with it failed the check: {error.what}")
        told = f"a first program failed the check ({error.what}) and was given up for one without {found}"
        self.progress.note(f"warning: {told}")
        return [rule for rule in rules if rule.name not in dropped], told

    def _compile(self, entry: Entry) -> int:
        """Compile a program; return about what it keeps in memory, in bytes."""
        plan = compile_program(entry.program, Path(entry.contender.path), self.compile_options)
        return plan.arena_bytes + sum(array.nbytes for array in entry.program.graph.tensors.values())

    def _compile_all(self, entries: Sequence[Entry]) -> tuple[dict[str, int], dict[str, str]]:
        """Compile every program; return the sizes, and the reasons of those that cannot be compiled."""
        sizes_bytes: dict[str, int] = {}
        failed: dict[str, str] = {}
        compile_ahead([entry.program for entry in entries], self.work, self.compile_options)
        for entry in entries:
            try:
                sizes_bytes[entry.contender.name] = self._compile(entry)
            except EinsatError as error:
                if entry.contender.name == PLAIN:
                    raise
                failed[entry.contender.name] = str(error)
        return sizes_bytes, failed

    @staticmethod
    def _fastest(entries: Sequence[Entry], raced: Race) -> Entry | None:
        """Return the fastest program, None when onnxruntime on the original model is."""
        if raced.timings[ORIGINAL].status != "ok":
            raise ModelError(f"onnxruntime cannot time the original model: {raced.timings[ORIGINAL].message}")
        fastest = min(entries, key=lambda entry: raced.median_us(entry.contender.name), default=None)
        if fastest is None or raced.median_us(fastest.contender.name) >= raced.median_us(ORIGINAL):
            return None
        return fastest

    def _check(self, model_file: Path, artefact: Path, reference: Any) -> CheckResult:
        saved = open_onnxruntime(model_file, self.options.threads)
        with Session(artefact, threads=self.options.threads) as session:
            return check(
                lambda feeds: reference.run(None, feeds),
                {model_file.name: lambda feeds: saved.run(None, feeds), artefact.name: lambda feeds: session.run(None, feeds)},
                [name for name, _ in self.graph.outputs],
                self.feeds,
                tolerance=self.options.tolerance, count=self.options.checks, seed=self.options.seed,
                plain=self._run_plainly,
            )  # fmt: skip

    def _run_plainly(self, feeds: Mapping[str, Any]) -> Sequence[Any]:
        """Run the original in onnxruntime without optimisations."""
        results: Sequence[Any] = open_onnxruntime(self.options.model, self.options.threads, optimise=False).run(None, dict(feeds))
        return results

    def _describe(
        self,
        trial: Trial,
        model: CostModel,
        checked: CheckResult,
        rules: Sequence[Rule | MergeRule],
        notes: tuple[str, ...],
        arena_bytes: int,
    ) -> Outcome:
        found, plain, raced, best = trial.found, trial.plain, trial.raced, trial.best
        rows = kernel_rows(best.program, model) if best else ()
        launched = [kernel for kernel in best.program.kernels if kernel.implementation not in FREE] if best else []
        uses = {rule.name: sum(rule.name in row.rules for row in rows) for rule in rules}
        finalists = [
            Finalist(c.contender.name, c.contender.digest, len(c.program.kernels), c.program.cost_us, _time(raced, c), _message(raced, c))
            for c in trial.entries
        ]
        latency_us = {ORIGINAL: raced.median_us(ORIGINAL), PLAIN: raced.median_us(PLAIN)}
        latency_us["optimized"] = raced.median_us(best.contender.name) if best else latency_us[ORIGINAL]
        counts = {"library": 0, "eoperator": 0, "opaque": 0 if best else 1}
        for row in rows:
            counts["opaque" if row.implementation == "opaque" else "eoperator" if row.implementation == "tvm" else "library"] += 1
        weights = best.program.graph.tensors if best else self.graph.tensors
        return Outcome(
            model=self.options.model.name,
            model_digest=self.model_digest.result(),
            device=device_key(self.options.threads),
            threads=self.options.threads,
            status="faster" if best else "unchanged",
            latency_us=latency_us,
            max_rel_err=checked.max_rel_err,
            worst_output=checked.worst_output,
            rules=tuple(
                RuleUse(rule.name, rule.verdict, uses[rule.name], rule.text.splitlines()[0], rule.rounding)
                for rule in sorted(rules, key=lambda rule: (-uses[rule.name], rule.name))
                if uses[rule.name]
            )
            + self.derivations.uses(launched),
            derived=self.derivations.derived(launched),
            growth=tuple(Growth(i.e_nodes, i.e_classes, i.matches, i.seconds) for i in found.saturation.iterations),
            rule_statistics=tuple(
                {"rule": s.rule, "matches": s.matches, "unions": s.unions, "e_nodes": s.e_nodes, "built": s.built}
                for s in found.saturation.statistics
                if s.matches
            ),
            stop_reason=found.saturation.stop_reason,
            search_seconds=found.saturation.seconds,
            extract_method=found.choice.selections[0].method,
            extract_optimal=found.choice.selections[0].optimal,
            extract_seconds=found.choice.extract_seconds,
            kernels=rows,
            before=kernel_rows(plain, model),
            finalists=tuple(finalists),
            shipped=best.contender.name if best else ORIGINAL,
            memory={"arena_bytes": arena_bytes, "weights_bytes": sum(array.nbytes for array in weights.values())},
            environment={"einsat": __version__, "python": platform.python_version(), **{name: library_version(name) for name in LIBRARIES}},
            options=self.options.stored(),
            notes=notes,
            kernel_counts=counts,
            refused=found.choice.refused,
            unsafe_rules=unproved(rules),
            rule_notes=rule_notes(rules),
        )


def _time(raced: Race, entry: Entry) -> float | None:
    samples = raced.timings[entry.contender.name].samples_us
    return statistics.median(samples) if samples else None


def _message(raced: Race, entry: Entry) -> str:
    return raced.timings[entry.contender.name].message
