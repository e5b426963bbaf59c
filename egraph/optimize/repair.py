"""Keep the gain where a program proves wrong, or takes another time than predicted: other programs come from the same e-graph.

Nothing grows again and little is measured. Kernels that alone disagree with what they should compute are filed as wrong; else the
derived programs that lose digits are bisected. What is found is said, and left out when programs are extracted again.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from egraph.engine.saturate import Limits
from egraph.errors import CheckFailed, EinsatError
from egraph.onnx import exporter
from egraph.optimize.blame import Blame, blame
from egraph.optimize.budget import Budget
from egraph.optimize.check import CheckResult, Disagreement
from egraph.optimize.check_noise import RunModel
from egraph.optimize.compiling import compile_entry
from egraph.optimize.derivations import Gate
from egraph.optimize.folding import Folder
from egraph.optimize.instances import wrong_rules
from egraph.optimize.measuring import Measurer
from egraph.optimize.mispredicted import at_fault, is_mispredicted
from egraph.optimize.options import Options
from egraph.optimize.progress import Progress
from egraph.optimize.race import Contender
from egraph.optimize.reference import Reference
from egraph.optimize.rehearsal import Rehearsal, RunProgram
from egraph.optimize.search import Search, program_digest, search_again
from egraph.optimize.trial import PLAIN, Entry, Trial, gain
from egraph.rule import MergeRule, Rule
from egraph.tensor import Graph, Program, format_fragment
from lower.compile import MANIFEST, PLAN, CompileOptions, keep_subnormals
from lower.cost.model import CostModel
from lower.targets import lowering
from runtime import Session
from runtime.profile import Record


@dataclass
class Repair:
    """What programs of one run are compared with, and what was learnt of them."""

    options: Options
    progress: Progress
    graph: Graph
    reference: Reference
    folder: Folder
    budget: Budget
    derivations: Gate
    work: Path
    keep_subnormals: bool
    learnt: list[str] = field(default_factory=list)
    """What failed checks taught, in words."""
    told: list[str] = field(default_factory=list)
    """What was left out of programs before they were compiled, in words."""
    attempts: int = 0
    """Programs that were found to be wrong."""

    @property
    def compile_options(self) -> CompileOptions:
        return CompileOptions(self.options.threads, lowering(self.options.device).target, self.keep_subnormals, exporter.serialized)

    def tested(self, entry: Entry) -> Disagreement | None:
        """Return how a compiled program differs on the first input of the check, where there is time to look."""
        seconds = self.budget.open_seconds + 2 * self.budget.run_seconds
        if self.progress.left_seconds < seconds + self.budget.race_seconds + self.budget.check_seconds:
            return None
        error = self._difference(entry)
        if error is not None and not self.keep_subnormals:
            files = {path: path.read_bytes() for name in (PLAN, MANIFEST) for path in [Path(entry.contender.path) / name]}
            keep_subnormals(Path(entry.contender.path))
            is_right = self._difference(entry) is None
            for path, content in files.items():
                path.write_bytes(content)
            return None if is_right else error  # what zeros for subnormal numbers do is seen to by the check of the saved files
        return error

    def _difference(self, entry: Entry) -> Disagreement | None:
        try:
            with Session(entry.contender.path, threads=self.options.threads) as session:
                run: RunModel = partial(session.run, None)
                self.compared({entry.contender.name: run}, lambda inputs: False, 1, entry, is_first=True)
        except Disagreement as error:
            return error
        except EinsatError:
            return None  # it does not load: the race says so
        return None

    def learn(self, text: str) -> None:
        """Say what a failed check taught, now and in the results."""
        self.learnt.append(text)
        self.progress.note(f"warning: {text}")

    @property
    def seconds(self) -> float:
        """Return how long it takes at least to find other programs in place of a wrong one, to compile, to time and to check them."""
        budget = self.budget
        race_seconds = budget.race_seconds + self.options.policy.race.least_seconds
        return 2 * budget.open_seconds + 6 * budget.run_seconds + race_seconds + budget.check_seconds

    def blamed(self, error: Disagreement, entry: Entry) -> Blame:
        return blame(self.graph, entry.folded(self.folder).program, error.feeds, self.compile_options)

    def repaired(self, error: Disagreement, found: Search, entry: Entry, model: CostModel) -> Search | None:
        """Return other programs of the same e-graph, without the kernels or derived programs that make this one differ.

        None where neither are at fault, or where there is no time left.
        """
        self.attempts += 1
        if self.options.frozen or self.attempts > self.options.policy.check.attempts or self.progress.left_seconds < self.seconds:
            return None
        blamed = self.blamed(error, entry)
        for kernel, reason in blamed.kernels:
            filed_under = model.device_of(kernel.fragment), format_fragment(kernel.fragment), kernel.implementation.text
            model.file(Record(*filed_under, "wrong", (), reason, model.generator_of(kernel.implementation)))
        rehearsal = replace(self.rehearsal(), samples=((error.feeds, self.reference.answer(error.feeds)),), told=[])
        is_numeric = bool(rehearsal.difference(entry.program))
        run = None if is_numeric else self._run_compiled
        other = self.extracted(found, model, rehearsal, run, wrong=entry.contender.digest)
        if not blamed.kernels and not rehearsal.told:
            return None
        what = "; ".join([*([str(blamed)] if blamed.kernels else []), *rehearsal.told])
        self.learn(f"a first program failed the check ({error.what}) and was given up for one without what is to blame: {what}")
        return other

    def rehearsal(self) -> Rehearsal:
        """Return what programs are compared with before they are compiled: the inputs that the check begins with."""
        budget = self.budget
        return Rehearsal(
            self.graph, self.folder, self.reference.samples(), self.options.tolerance, self.options.threads,
            lambda: self.progress.left_seconds - budget.after_search_seconds(),
            budget.open_seconds, budget.run_seconds, self.derivations.errors, self.told, self.options.policy.check,
        )  # fmt: skip

    def _run_compiled(self, program: Program, feeds: Mapping[str, Any]) -> Sequence[Any]:
        with tempfile.TemporaryDirectory(prefix="einsat-repair-", dir=self.work) as folder:
            place = Path(folder) / "program"
            compile_entry(Entry(Contender("", "", "einsat", str(place)), self.folder.fold(program)), self.compile_options)
            with Session(place, threads=self.options.threads) as session:
                results: Sequence[Any] = session.run(None, feeds)
        return results

    def compared(
        self, candidates: Mapping[str, RunModel], goes_on: Callable[[int], bool], count: int, entry: Entry | None, *, is_first: bool = False
    ) -> CheckResult:
        """Compare with the original on ``count`` inputs; raises Disagreement. ``entry``: the program that the candidates run."""

        def wrong_kernels(feeds: Mapping[str, Any]) -> Sequence[Any]:
            folded = entry and entry.folded(self.folder)
            return blame(self.graph, folded.program, feeds, self.compile_options).kernels if folded else ()

        return self.reference.compare(candidates, goes_on, count, wrong_kernels, is_first=is_first)

    def extracted(
        self, found: Search, model: CostModel, rehearsal: Rehearsal | None = None, run: RunProgram | None = None, *, wrong: str = ""
    ) -> Search:
        """Return programs of the same e-graph, by what is known of its kernels now and without what is ``wrong``."""
        return search_again(
            self.graph, found, model, self.budget, rehearsal or self.rehearsal(), run, wrong=wrong,
            finalists=self.options.finalists, seed=self.options.seed,
        )  # fmt: skip

    def look(self, entry: Entry, measured_us: float, predicted_us: float, model: CostModel, measurer: Measurer) -> bool:
        """Find and say which kernels are the reason why a program takes another time than predicted; return whether any was filed."""
        self.progress.stage("time kernels in place")
        program, place = entry.folded(self.folder).program, entry.contender.path
        feeds = self.reference.raced_feeds
        policy = self.options.policy.prediction
        kernels = at_fault(program, place, feeds, model, measurer, lambda: self.progress.left_seconds - self.seconds, policy)
        told = f"{entry.contender.name} takes {measured_us:.0f} us, not {predicted_us:.0f} as predicted"
        self.progress.note(told + (":" if kernels else ""))
        for one in kernels:
            self.progress.note(f"  {one}")
        return any(one.is_filed for one in kernels)

    def without_wrong(
        self, rules: Sequence[Rule | MergeRule], error: Disagreement, found: Search, entry: Entry
    ) -> Sequence[Rule | MergeRule]:
        """Return the rules without those that make a program wrong; raises CheckFailed where none is found to be."""
        limits = Limits(self.progress.left_seconds, self.options.max_nodes, len(found.saturation.iterations))
        blamed = self.blamed(error, entry)
        dropped = tuple(wrong_rules(self.graph, rules, limits, seed=self.options.seed)) or blamed.rules
        if not dropped:
            raise CheckFailed(f"{error.what}; {blamed}", where=error.where, fix=error.fix) from error
        self.learn(f"a program failed the check ({error.what}) and was given up for one without {', '.join(dropped)}")
        self.derivations.leave_out(dropped, f"a program with it failed the check: {error.what}")
        return [rule for rule in rules if rule.name not in dropped]

    def too_late(self, error: Disagreement, entry: Entry) -> None:
        """Say that a program is given up without knowing why."""
        self.attempts += 1
        late = f"there was no time to replace what is to blame: --budget {2 * self.options.budget_seconds:.0f}s gives it twice as long"
        self.learn(f"{entry.contender.name} failed the check ({error.what}); {late}")

    def noticed(self, trial: Trial, measurer: Measurer, model: CostModel, race_again: Callable[[Search], Trial]) -> Trial:
        """Look into a program that takes another time than predicted, and extract again by what its kernels cost inside of it."""
        looked: set[str] = set()
        known = {entry.contender.digest for entry in trial.entries}
        runs = 2 * (self.options.policy.prediction.runs + 1)  # inside a program, kernels are timed before and after they are timed alone
        look_seconds = self.budget.open_seconds + runs * self.budget.run_seconds
        while self.progress.left_seconds > self.seconds + look_seconds:
            others = [each for each in trial.entries if each.contender.name != PLAIN and each.contender.digest not in looked]
            timed = [(trial.raced.median_us(each.contender.name), model.program_us(each.program), each) for each in others]
            odd = [one for one in timed if math.isfinite(one[0]) and is_mispredicted(one[0], one[1], self.options.policy.prediction.factor)]
            if not odd:
                break
            measured_us, predicted_us, entry = min(odd, key=lambda one: one[0])
            looked.add(entry.contender.digest)
            is_news = self.look(entry, measured_us, predicted_us, model, measurer)
            measurer.worker.close()
            if not is_news or self.progress.left_seconds < self.seconds:
                continue
            other = self.extracted(trial.found, model)
            digests = {program_digest(program) for program in other.programs}
            if digests <= known:
                continue
            known |= digests
            rival = race_again(other)
            trial = rival if gain(rival) > gain(trial) else trial
        return trial
