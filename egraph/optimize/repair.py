"""Replace a program that proves wrong, or that takes another time than predicted, by other programs of the same e-graph.

No rules are applied again and little is measured. Kernels that are wrong on their own are recorded as wrong; if there are none, the derived
programs that lose digits are found by bisection. The findings are reported, and excluded when programs are extracted again.

If a program takes much longer or shorter than its kernels predict, the kernels that cause the difference are searched. A kernel is timed
alone, on random data. Inside a program it may read other data (subnormal numbers take a hundred times as long), or cache lines that another
core has. Its record may also have been measured while other processes ran. Therefore the program's kernels are timed in place, twice, on
the data that programs are timed on. Between the two, the kernels that differ most are timed alone again:

* no record: the estimate was wrong, and the time alone is recorded, for all models;
* alone faster than recorded: other processes ran when it was measured. The record is replaced, because other processes only ever slow a
  kernel;
* alone slower than recorded, or not the same twice in place: other processes run now, so no time is believed or recorded;
* alone as recorded, and twice another time in place: this is its cost *in place*, which is recorded for this model.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from egraph.engine.saturate import Limits
from egraph.errors import EinsatError
from egraph.onnx import exporter
from egraph.onnx.types import tensor_digest
from egraph.optimize.blame import Blame, blame, wrong_rules
from egraph.optimize.budget import Budget
from egraph.optimize.check import CheckResult, Disagreement
from egraph.optimize.check_noise import RunModel
from egraph.optimize.choice import program_digest
from egraph.optimize.derivations import Deriver
from egraph.optimize.folding import Folder
from egraph.optimize.measuring import Measurer
from egraph.optimize.options import Options
from egraph.optimize.outline import Outline
from egraph.optimize.progress import Progress
from egraph.optimize.race import Contender
from egraph.optimize.reference import Reference
from egraph.optimize.rehearsal import OpenProgram, Rehearsal
from egraph.optimize.search import Search, search_again
from egraph.optimize.storage import extracted_digest
from egraph.optimize.trial import PLAIN, Entry, Trial, compile_entry, gain
from egraph.policy import PredictionPolicy
from egraph.rule import MergeRule, Rule
from egraph.tensor import Candidate, Kernel, Program, format_fragment
from egraph.tensor.storage import without_stored
from lower.compile import MANIFEST, PLAN, CompileOptions, keep_subnormals, plan_program
from lower.cost.model import CostModel, KernelKey
from lower.targets import lowering
from runtime import Session
from runtime.errors import ExecutionError
from runtime.profile import Record

Verdict: TypeAlias = Literal["in place", "recorded", "estimated", "busy", "untried"]


@dataclass(frozen=True)
class AtFault:
    """A kernel that took another time inside a program than its cost predicts."""

    candidate: Candidate
    predicted_us: float
    in_place_us: float
    alone_us: float
    """Its time alone now, or infinity if it is not known."""
    verdict: Verdict
    launches: int = 1

    @property
    def is_filed(self) -> bool:
        """Return whether the kernel has another cost from now on."""
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
    """Return whether a time differs so much from the prediction that the reason is searched."""
    return max(measured_us, predicted_us) > factor * min(measured_us, predicted_us)


def times_in_place(
    session: Session, program: Program, options: CompileOptions, runs: int = PredictionPolicy.runs
) -> list[tuple[tuple[Kernel, ...], float]]:
    """Return the kernels of each step of a program and its microseconds, on the inputs of the last run.

    The steps that a kernel in bytes consists of have no kernels here, because they cannot be timed alone.
    """
    _, writer = plan_program(program, options)
    steps = session.profile(runs)
    alone = {(kernel.fragment, kernel.implementation) for kernel in program.kernels}
    rows = zip(writer.kernels, steps, strict=True)
    return [(kernels if all((each.fragment, each.implementation) in alone for each in kernels) else (), us) for kernels, (_, us) in rows]


def at_fault(
    program: Program,
    artefact: str,
    feeds: Mapping[str, Any],
    model: CostModel,
    measurer: Measurer,
    time_left: Callable[[], float],
    policy: PredictionPolicy = PredictionPolicy(),
) -> tuple[AtFault, ...]:
    """Return the kernels that cause the program compiled to ``artefact`` to take another time; times that are certain are recorded."""
    options = measurer.options
    with Session(artefact, threads=options.threads) as session:
        session.run(None, feeds)
        first = times_in_place(session, program, options, policy.runs)
        suspects = _suspects(first, model, policy)
        alone = measurer.measure_again(model, [candidate for candidate, _ in suspects.values()], time_left)
        session.run(None, feeds)
        second = _by_kernel(times_in_place(session, program, options, policy.runs), model)
    faults = []
    for key, (candidate, times) in suspects.items():
        again_us = sum(second[key][1]) / len(second[key][1])
        in_place_us, predicted_us = min(sum(times) / len(times), again_us), model.cost_us(candidate)
        record, earlier = alone.get(key), model.record(candidate)
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
            model.file_in_place(candidate, (sum(times) / len(times), again_us))
        faults.append(AtFault(candidate, predicted_us, in_place_us, alone_us, verdict, len(times)))
    return tuple(faults)


def _by_kernel(rows: Sequence[tuple[tuple[Kernel, ...], float]], model: CostModel) -> dict[KernelKey, tuple[Candidate, list[float]]]:
    """Return the times of each distinct kernel that is a step on its own."""
    times_by_key: dict[KernelKey, tuple[Candidate, list[float]]] = {}
    for kernels, time_us in rows:
        if len(kernels) == 1 and not (kernels[0].implementation.is_free or kernels[0].implementation.is_opaque):
            candidate = Candidate(kernels[0].fragment, (), (), kernels[0].implementation)
            times_by_key.setdefault(model.key(candidate), (candidate, []))[1].append(time_us)
    return times_by_key


def _suspects(
    rows: Sequence[tuple[tuple[Kernel, ...], float]], model: CostModel, policy: PredictionPolicy
) -> dict[KernelKey, tuple[Candidate, list[float]]]:
    """Return the kernels that contribute most to the difference between a program's time and its prediction."""
    total_us = sum(time_us for _, time_us in rows)
    kernels = _by_kernel(rows, model)
    off = {key: abs(sum(times) - len(times) * model.cost_us(candidate)) for key, (candidate, times) in kernels.items()}

    def is_off(key: KernelKey) -> bool:
        candidate, times = kernels[key]
        mean_us = sum(times) / len(times)
        return off[key] > policy.least_share * total_us and is_mispredicted(mean_us, model.cost_us(candidate), policy.factor)

    chosen = sorted(filter(is_off, kernels), key=lambda key: (-off[key], key))[: policy.kernels]
    return {key: kernels[key] for key in chosen}


@dataclass
class Repair:
    """The reference that the programs of one run are compared with, and the findings about them."""

    options: Options
    progress: Progress
    outline: Outline
    reference: Reference
    folder: Folder
    budget: Budget
    derivations: Deriver
    work: Path
    keep_subnormals: bool
    learnt: list[str] = field(default_factory=list)
    """Notes on failed checks."""
    notes: list[str] = field(default_factory=list)
    """Notes on the kernels that were excluded before programs were compiled."""
    attempts: int = 0
    """Number of programs that were found to be wrong."""
    vouched: dict[tuple[str, ...], Blame] = field(default_factory=dict)
    """Results of comparing programs part by part, by program and input: a pair occurs before the race and in the check."""

    @property
    def compile_options(self) -> CompileOptions:
        return CompileOptions(self.options.threads, lowering(self.options.device).target, self.keep_subnormals, exporter.serialized)

    def tested(self, entry: Entry) -> Disagreement | None:
        """Return how a compiled program differs on the first input of the check, if there is time to compare it."""
        budget = self.budget
        seconds = budget.open_seconds + max(2 * budget.run_seconds, budget.compared_seconds)
        if self.progress.left_seconds < seconds + budget.race_seconds + budget.check_seconds + budget.other_inputs_seconds:
            return None
        error = self._difference(entry)
        if error is not None and not self.keep_subnormals:
            files = {path: path.read_bytes() for name in (PLAN, MANIFEST) for path in [Path(entry.contender.path) / name]}
            keep_subnormals(Path(entry.contender.path))
            is_right = self._difference(entry) is None
            for path, content in files.items():
                path.write_bytes(content)
            return None if is_right else error  # the check of the saved files decides about zeros for subnormal numbers (denormals)
        return error

    def _difference(self, entry: Entry) -> Disagreement | None:
        try:
            with Session(entry.contender.path, threads=self.options.threads, on=self.options.device) as session:
                run: RunModel = partial(session.run, None)
                started_seconds = self.progress.spent_seconds - self.reference.opening_seconds
                try:
                    self.compared({entry.contender.name: run}, lambda inputs: False, 1, entry, is_first=True)
                finally:
                    self.budget.compared(self.progress.spent_seconds - self.reference.opening_seconds - started_seconds)
        except Disagreement as error:
            return error
        except (EinsatError, ExecutionError):
            return None  # it does not load: the race reports the reason
        return None

    def learn(self, text: str) -> None:
        """Note the finding of a failed check, now and in the results."""
        self.learnt.append(text)
        self.progress.note(f"warning: {text}")

    @property
    def seconds(self) -> float:
        """Return the seconds to find, compile, time and check other programs in place of a wrong one."""
        budget = self.budget
        return 2 * budget.open_seconds + 6 * budget.run_seconds + budget.race_seconds + budget.check_seconds

    def blamed(self, error: Disagreement, entry: Entry) -> Blame:
        program = entry.folded(self.folder).program
        return error.alone or blame(self.outline.model, program, error.feeds, self.compile_options, self.options.tolerance)

    def repaired(self, error: Disagreement, searched: Search, entry: Entry, model: CostModel) -> Search | None:
        """Return other programs of the same e-graph, without the kernels or derived programs that make this one differ.

        Return None if neither cause the difference, or if there is no time left.
        """
        self.attempts += 1
        if self.options.frozen or self.attempts > self.options.policy.check.attempts or self.progress.left_seconds < self.seconds:
            return None
        blamed = self.blamed(error, entry)
        for kernel, reason in blamed.kernels:
            filed_under = model.device_of(kernel.fragment), format_fragment(kernel.fragment), kernel.implementation.text
            digest = lowering(self.options.device).code_digest(kernel.fragment, kernel.implementation)
            model.file(Record(*filed_under, "wrong", (), reason, digest))
        rehearsal = replace(self.rehearsal(), samples=((error.feeds, self.reference.outputs(error.feeds)),), notes=[])
        is_numeric = bool(rehearsal.difference(without_stored(entry.program)))
        open_program = None if is_numeric else self._open_compiled
        other = self.extracted(searched, model, rehearsal, open_program, wrong=extracted_digest(entry.program))
        if not blamed.kernels and not rehearsal.notes:
            return None
        what = "; ".join([*([str(blamed)] if blamed.kernels else []), *rehearsal.notes])
        self.learn(f"a first program failed the check ({error.what}) and was given up for one without what is to blame: {what}")
        return other

    def rehearsal(self) -> Rehearsal:
        """Return the rehearsal, which compares programs before they are compiled, on the inputs that the check begins with."""
        budget = self.budget
        return Rehearsal(
            self.outline.model, self.folder, self.reference.samples(), self.options.tolerance, self.options.threads,
            lambda: self.progress.left_seconds - budget.after_search_seconds(),
            budget.saved_open_seconds, budget.run_seconds, budget.opened, self.derivations.errors, self.notes, self.options.policy.check,
            self.outline.originals,
        )  # fmt: skip

    @contextmanager
    def _open_compiled(self, program: Program) -> Iterator[RunModel]:
        with tempfile.TemporaryDirectory(prefix="einsat-repair-", dir=self.work) as folder:
            artefact = Path(folder) / "program"
            compile_entry(Entry(Contender("", "", "einsat", str(artefact)), self.folder.fold(program)), self.compile_options)
            with Session(artefact, threads=self.options.threads, on=self.options.device) as session:
                yield partial(session.run, None)

    def compared(
        self, candidates: Mapping[str, RunModel], goes_on: Callable[[int], bool], count: int, entry: Entry | None, *, is_first: bool = False
    ) -> CheckResult:
        """Compare candidates with the original on ``count`` inputs; raises Disagreement.

        ``entry``: the program that the candidates run, or None if they run the model itself, which rounds as the user's file says.
        """

        def vouch(feeds: Mapping[str, Any]) -> Blame:
            if entry is None:
                return Blame()
            tensors = (each for name in sorted(feeds) for each in (feeds[name] if isinstance(feeds[name], list) else [feeds[name]]))
            key = (program_digest(entry.program), *(tensor_digest(np.asarray(each)) for each in tensors))
            if key not in self.vouched:
                program = entry.folded(self.folder).program
                self.vouched[key] = blame(self.outline.model, program, feeds, self.compile_options, self.options.tolerance)
            return self.vouched[key]

        reference = self.reference if entry is not None else self.reference.in_given_types(self.options)
        return reference.compare(candidates, goes_on, count, vouch, is_first=is_first)

    def extracted(
        self,
        searched: Search,
        model: CostModel,
        rehearsal: Rehearsal | None = None,
        open_program: OpenProgram | None = None,
        *,
        wrong: str = "",
    ) -> Search:
        """Return programs of the same e-graph by the current records of its kernels, without the causes of the program ``wrong``."""
        return search_again(
            searched, model, self.budget, rehearsal or self.rehearsal(), open_program, wrong=wrong,
            finalists=self.options.finalists, seed=self.options.seed,
        )  # fmt: skip

    def look(self, entry: Entry, measured_us: float, predicted_us: float, model: CostModel, measurer: Measurer) -> bool:
        """Report the kernels that cause a program to take another time than predicted; return whether any time was recorded."""
        self.progress.stage("time kernels in place")
        program, artefact = entry.folded(self.folder).program, entry.contender.path
        feeds = self.reference.raced_feeds
        policy = self.options.policy.prediction
        kernels = at_fault(program, artefact, feeds, model, measurer, lambda: self.progress.left_seconds - self.seconds, policy)
        finding = f"{entry.contender.name} takes {measured_us:.0f} us, not {predicted_us:.0f} as predicted"
        self.progress.note(finding + (":" if kernels else ""))
        for kernel in kernels:
            self.progress.note(f"  {kernel}")
        return any(kernel.is_filed for kernel in kernels)

    def without_wrong(
        self, rules: Sequence[Rule | MergeRule], error: Disagreement, searched: Search, entry: Entry
    ) -> Sequence[Rule | MergeRule] | None:
        """Return the rules without those that make a program wrong, or None, with a note, if none is found."""
        policy = self.options.policy.saturation
        limits = Limits(self.progress.left_seconds, self.options.max_nodes, len(searched.saturation.iterations), policy.matches)
        blamed = self.blamed(error, entry)
        dropped = tuple(wrong_rules(self.outline.graph, rules, limits, seed=self.options.seed, policy=policy)) or blamed.rules
        if not dropped:
            self.attempts += 1
            what = error.what if error.alone else f"{error.what}; {blamed}"
            self.learn(f"{entry.contender.name} failed the check ({what}): nothing was found that could be left out")
            return None
        self.learn(f"a program failed the check ({error.what}) and was given up for one without {', '.join(dropped)}")
        self.derivations.leave_out(dropped, f"a program with it failed the check: {error.what}")
        return [rule for rule in rules if rule.name not in dropped]

    def too_late(self, error: Disagreement, entry: Entry) -> None:
        """Note that a program is rejected and that there was no time to find the reason."""
        self.attempts += 1
        late = f"there was no time to replace what is to blame: --budget {self.progress.longer_seconds:.0f}s gives it twice as long"
        self.learn(f"{entry.contender.name} failed the check ({error.what}); {late}")

    def noticed(self, trial: Trial, measurer: Measurer, model: CostModel, race_again: Callable[[Search], Trial]) -> Trial:
        """Examine programs that take another time than predicted, and extract again with their kernels' costs in place."""
        looked: set[str] = set()
        digests_timed = {extracted_digest(entry.program) for entry in trial.entries}
        runs = 2 * (self.options.policy.prediction.runs + 1)  # kernels are timed in place before and after they are timed alone
        look_seconds = self.budget.open_seconds + runs * self.budget.run_seconds
        while self.progress.left_seconds > self.seconds + look_seconds:
            contenders = [each for each in trial.entries if each.contender.name != PLAIN and each.contender.digest not in looked]
            timed = [(trial.raced.median_us(each.contender.name), model.program_us(each.program), each) for each in contenders]
            factor = self.options.policy.prediction.factor
            odd = [timing for timing in timed if math.isfinite(timing[0]) and is_mispredicted(timing[0], timing[1], factor)]
            if not odd:
                break
            measured_us, predicted_us, entry = min(odd, key=lambda timing: timing[0])
            looked.add(entry.contender.digest)
            is_news = self.look(entry, measured_us, predicted_us, model, measurer)
            measurer.worker.close()
            if not is_news or self.progress.left_seconds < self.seconds:
                continue
            other = self.extracted(trial.searched, model)
            digests = {program_digest(program) for program in other.programs}
            if digests <= digests_timed:
                continue
            digests_timed |= digests
            rival = race_again(other)
            trial = rival if gain(rival) > gain(trial) else trial
        return trial
