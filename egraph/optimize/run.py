"""The context that the stages of one run share: options, model, reference, and what the run has learnt."""

from __future__ import annotations

import hashlib
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from egraph.optimize import stages
from egraph.optimize.budget import Budget
from egraph.optimize.byte_ranges import Ranges
from egraph.optimize.derivations import Deriver
from egraph.optimize.folding import Folder
from egraph.optimize.measuring import Measurer, calibrate
from egraph.optimize.options import CONSTRAINED, Options
from egraph.optimize.precision import Rounding
from egraph.optimize.progress import Progress
from egraph.optimize.race import Contender
from egraph.optimize.records import Earlier, write_search
from egraph.optimize.reference import Reference
from egraph.optimize.repair import Repair
from egraph.optimize.search import Search
from egraph.optimize.storage import Storage
from egraph.tensor import Graph
from lower.cost.model import CostModel
from lower.cost.prior import shipped
from lower.cost.rounding import ErrorModel
from lower.roofline import DeviceSpeed
from lower.targets import Lowering
from runtime.devices import Device
from runtime.measure import Worker
from runtime.profile import Database


@dataclass
class Run:
    """The context of one run, shared by its stages."""

    options: Options
    progress: Progress
    graph: Graph
    reference: Reference
    database: Database
    worker: Worker
    derivations: Deriver
    budget: Budget
    folder: Folder
    repair: Repair
    work: Path
    """Folder for compiled programs."""
    model_file: Path
    artefact: Path
    model_digest: Future[str]
    device: Device
    device_key: str
    """Key of this device's kernel times in the profile database."""
    lowering: Lowering
    rounding: Rounding
    storage: Storage
    ranges: Ranges
    model: CostModel | None = None
    searches: int = 0
    """Number of times that programs were extracted for timing."""

    def calibrated(self, measurer: Measurer | None = None) -> CostModel:
        """Return the cost model; the first call calibrates it."""
        if self.model is None:
            if self.device.is_timed:
                self.progress.stage("calibrate")
            target, has_time = self.lowering.target, lambda: self.budget.measuring_seconds() > 0
            speed = calibrate(self.database, self.device_key, target, measurer, has_time=has_time)
            self.model = self.prices(speed)
        return self.model

    def prices(self, speed: DeviceSpeed) -> CostModel:
        """Return the cost model for a device of the given speed."""
        weights_bytes = sum(array.nbytes for array in self.graph.tensors.values())
        outputs = hashlib.sha256(" ".join(node.digest for node in self.graph.roots).encode()).hexdigest()[:16]
        is_from_memory = not self.device.stays_in_cache(weights_bytes)
        return CostModel(
            self.database, self.device_key, speed, is_from_memory, model=outputs, target=stages.target_of(self.options, self.lowering),
            policy=self.options.policy.cost, prior=shipped(self.lowering.target.kind),
            errors=ErrorModel(self.options.tolerance, derived=self._derived_errors) if self.options.precision in CONSTRAINED else None,
        )  # fmt: skip

    def _derived_errors(self) -> dict[str, float]:
        """Return the usual relative error of each derivation by its name."""
        return {name: self.options.policy.check.layer * error for name, error in self.derivations.errors().items()}

    def look_again(self) -> None:
        """Update the estimate of how busy the machine is."""
        feeds = dict(self.reference.raced_feeds)
        self.budget.look_again(lambda: self.reference.session.run(None, feeds))

    def file(self, searched: Search, key: str, *, is_timed: bool = True) -> None:
        """Record what a search chose, so that the same command can reuse it.

        If none of its programs ``is_timed``, it is recorded with a budget of 0, and the next run searches again.
        """
        if self.device.is_timed and not self.options.frozen and not searched.choice.is_earlier:
            counts = len(searched.saturation.iterations), searched.choice.kernels_unmeasured
            budget_seconds = self.options.budget_seconds if is_timed else 0.0
            filed = Earlier(*counts, budget_seconds, searched.text, searched.choice.refused, searched.saturation.looks)
            write_search(self.database, self.device_key, key, filed)

    def contender(self, name: str, digest: str) -> Contender:
        """Return the contender of a race for a program with this name and digest."""
        return Contender(name, digest, "einsat", str(self.work / name.replace(" ", "-")), keep_subnormals=self.repair.keep_subnormals)
