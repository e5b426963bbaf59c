"""Compare two models as wholes and part by part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from egraph.errors import ModelError
from egraph.optimize.check import find_feeds, open_original
from egraph.optimize.check_noise import relative_error
from egraph.optimize.original import at_sizes
from egraph.tolerance import Tolerance
from runtime.feeds import random_feeds
from verify.model.chain import Chain, chain
from verify.model.parts import Part, aligned, common_tensors, covered, settle
from verify.model.sides import Side, read_side

MAGNITUDE = 1e-6
"""An output smaller than this is compared absolutely."""


@dataclass(frozen=True)
class Settings:
    """How to compare. ``tolerance``: largest accepted difference relative to the largest magnitude of a tensor."""

    tolerance: float = Tolerance().relative
    inputs: int = 3
    seed: int = 0
    threads: int = 1
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Comparison:
    """The result: errors of the outputs, the parts, the first common tensor that differs, the chain of certificates."""

    outputs: Mapping[str, float]
    parts: tuple[Part, ...]
    first_differing: str
    chain: Chain | None
    tolerance: float

    @property
    def equal(self) -> bool:
        return all(error <= self.tolerance for error in self.outputs.values())

    def lines(self) -> list[str]:
        """Return the comparison for people."""
        lines = [f"output {name}: {'equal' if error <= self.tolerance else 'DIFFERS'}, largest relative error {error:.2g}"
                 for name, error in self.outputs.items()]  # fmt: skip
        methods = ", ".join(f"{count} by {method}" for method, count in covered(self.parts).items())
        lines += [f"{len(self.parts)} common tensors: {methods}"] if self.parts else ["no common tensors"]
        width = max((len(part.tensor) for part in self.parts), default=0)
        for part in self.parts:
            if part.method != "structure":
                rules = f"  rules: {', '.join(sorted(part.rules))}" if part.rules else ""
                sizes = f"{part.operators[0]} operators against {part.operators[1]}"
                error = "" if part.error is None else f", error {part.error:.2g}"
                lines.append(f"  {part.tensor:{width}}  {part.method:9}  {sizes}{error}{rules}")
        lines += [f"the first tensor that differs: {self.first_differing}"] if self.first_differing else []
        lines += [f"certificates: {self.chain}"] if self.chain else []
        return [*lines, "equal" if self.equal else "different"]

    def to_json(self) -> dict[str, Any]:
        parts = [
            {"tensor": part.tensor, "method": part.method, "operators": part.operators, "error": part.error, "rules": sorted(part.rules)}
            for part in self.parts
        ]
        made = self.chain and {"from_this": self.chain.made_from_this, "proved": self.chain.is_proved, "rules": dict(self.chain.rules)}
        return {
            "equal": self.equal, "tolerance": self.tolerance, "outputs": dict(self.outputs), "covered": covered(self.parts), "parts": parts,
            "first_differing": self.first_differing or None, "made": made,
        }  # fmt: skip


def compare_models(a: Path, b: Path, settings: Settings = Settings()) -> Comparison:
    """Return how two models differ; raises ModelError if they cannot be read, run or compared."""
    first, second = read_side(a, settings.shapes), read_side(b, settings.shapes)
    _same_interface(first, second)
    with at_sizes(first.path, settings.shapes) as model:
        specs = find_feeds(open_original(model, settings.threads), first.graph, settings.seed)
    rename = dict(zip(first.inputs, second.inputs, strict=True)) if set(first.inputs) != set(second.inputs) else {}
    graph = aligned(second.graph, first.graph)
    pairs = dict(zip(first.outputs, second.outputs, strict=True)) if set(first.outputs) != set(second.outputs) else {}
    names = [*common_tensors(first.graph, graph)]
    errors: dict[str, float] = {}
    outputs = dict.fromkeys(first.outputs, 0.0)
    for number in range(settings.inputs):
        feeds = random_feeds(specs, settings.seed + number)
        ours = first.values(feeds, list(dict.fromkeys((*names, *first.outputs))), settings.threads)
        renamed = {rename.get(name, name): value for name, value in feeds.items()}
        theirs = second.values(renamed, list(dict.fromkeys((*names, *second.outputs))), settings.threads)
        for name in names:
            errors[name] = max(errors.get(name, 0.0), difference(ours[name], theirs[name]))
        for name in outputs:
            outputs[name] = max(outputs[name], difference(ours[name], theirs[pairs.get(name, name)]))
    parts = tuple(
        Part(part.tensor, part.method, part.operators,
             errors.get(part.tensor) if part.method in ("float32", "follows", "differs") else None,
             second.rules_behind(pairs.get(part.tensor, part.tensor), names))
        for part in settle(first.graph, graph, errors, settings.tolerance)
    )  # fmt: skip
    differing = next((part.tensor for part in parts if part.method == "differs"), "")
    bad = next((name for name, error in outputs.items() if not error <= settings.tolerance), "")
    return Comparison(outputs, parts, differing or bad, chain(first.path, second), settings.tolerance)


def _same_interface(a: Side, b: Side) -> None:
    for role, ours, theirs in (("inputs", a.graph.inputs, b.graph.inputs), ("outputs", a.graph.roots, b.graph.roots)):
        types, others = ([str(node.type) for node in nodes] for nodes in (ours, theirs))
        if sorted(types) != sorted(others):
            names = f"{', '.join(types)} and {', '.join(others)}"
            fix = "give models of one interface; --shape NAME:SIZES fixes sizes that one of them leaves open"
            raise ModelError(f"the models have different {role}: {names}", where=f"{a.path}, {b.path}", fix=fix)


def difference(want: Any, got: Any) -> float:
    """Return the difference of two values relative to the first one's largest magnitude; infinite if they are of different kinds."""
    if isinstance(want, list) or isinstance(got, list):
        if not (isinstance(want, list) and isinstance(got, list) and len(want) == len(got)):
            return float("inf")
        return max((difference(first, second) for first, second in zip(want, got, strict=True)), default=0.0)
    first, second = np.asarray(want), np.asarray(got)
    if first.shape != second.shape or first.dtype != second.dtype:
        return float("inf")
    if first.dtype.kind not in "fc":
        return 0.0 if np.array_equal(first, second) else float("inf")
    if not np.array_equal(np.isfinite(first), np.isfinite(second)):
        return float("inf")
    error = relative_error(first, second)
    return 0.0 if float(np.abs(np.nan_to_num(first - second)).max(initial=0.0)) <= MAGNITUDE * np.finfo(first.dtype).eps else error

