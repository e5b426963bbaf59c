"""The model as it was given, in onnxruntime: what it answers, how far rounding moves it, and how programs compare with it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from egraph.optimize.answers import Answers
from egraph.optimize.check import VALUES, CheckResult, check
from egraph.optimize.check_noise import RunModel, open_onnxruntime, open_shaken
from egraph.optimize.given import Accepted, Given
from egraph.optimize.options import Options
from egraph.optimize.rehearsal import Sample
from egraph.tensor import Graph
from runtime.feeds import random_feeds


@dataclass
class Reference:
    """The original, and the inputs on which everything is compared with it."""

    options: Options
    graph: Graph
    given: Given
    runs: Accepted
    session: Any
    """The model in onnxruntime, with all its optimisations."""
    answers: Answers

    @property
    def raced_feeds(self) -> Mapping[str, Any]:
        """Return the inputs that programs are timed on."""
        return self.given.feeds[0] if self.given.feeds else random_feeds(self.runs.specs, self.options.seed)

    def answer(self, feeds: Mapping[str, Any]) -> Sequence[Any]:
        """Return the original's outputs."""
        known: Sequence[Any] | None = self.answers.of(feeds) or self.session.run(None, dict(feeds))
        return known or ()

    def samples(self) -> list[Sample]:
        """Return the inputs that a check begins with, each with its answer, which is kept for the check."""
        feeds: list[Mapping[str, Any]] = [feeds for _, feeds in self.given.named]
        if self.runs.is_random:
            most = self.options.checks if self.runs.run_seconds < self.options.policy.race.slow_run_seconds else 1
            for number, values in enumerate(VALUES[:most]):
                feeds.append(random_feeds([replace(spec, values=values) for spec in self.runs.specs], self.options.seed + number))
        answered = [(each, self.answer(each)) for each in feeds]
        for each, answer in answered:
            self.answers.keep(each, answer)
        return answered

    def compare(
        self, candidates: Mapping[str, RunModel], goes_on: Callable[[int], bool], count: int, wrong_kernels: RunModel, *, is_first: bool
    ) -> CheckResult:
        """Compare what runs with the original on ``count`` inputs; raises Disagreement. ``is_first``: of the user's own on one alone."""
        given = self.given.named[:1] if is_first else self.given.named
        return check(
            self.answer, candidates, [name for name, _ in self.graph.outputs], self.runs.specs,
            tolerance=self.options.tolerance, count=count, seed=self.options.seed, plain=self._run_plainly, plain_moved=self._run_shaken,
            vouch=wrong_kernels, goes_on=goes_on, given=given, is_random=self.runs.is_random,
            most_replaced=self.options.policy.check.replaced,
        )  # fmt: skip

    def _run_plainly(self, feeds: Mapping[str, Any]) -> Sequence[Any]:
        """Run the original without optimisations."""
        results: Sequence[Any] = open_onnxruntime(self.options.model, self.options.threads, optimise=False).run(None, dict(feeds))
        return results

    def _run_shaken(self, feeds: Mapping[str, Any]) -> Sequence[Any]:
        """Run the original without optimisations, with weights that differ in their last bit."""
        with tempfile.TemporaryDirectory(prefix="einsat-shaken-") as folder:
            session = open_shaken(self.options.model, self.options.threads, Path(folder), self.options.seed)
            results: Sequence[Any] = session.run(None, dict(feeds))
        return results
