"""The results of a run: the data behind the results table, ``--json``, the manifest, the report and ``inspect``."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from egraph.errors import ModelError
from egraph.optimize.stitched import Stitched
from egraph.tensor import PLAIN, Implementation
from egraph.tensor.storage import NARROW
from runtime.artefact import MANIFEST, find_folder
from runtime.errors import ArtefactError


@dataclass(frozen=True)
class RuleUse:
    """A rule that the shipped program rests on. ``uses``: number of its kernels that do; 0 if only weights, views or outputs do."""

    name: str
    verdict: str
    uses: int
    equation: str = ""
    rounding: str = "exact"


@dataclass(frozen=True)
class Derived:
    """A derivation that kernels of the shipped program come from: its operator, and the steps to its program."""

    name: str
    rule: str
    operator: str
    steps: tuple[tuple[str, str], ...]
    """Each step's rule, and the expression after it."""
    kernels: tuple[int, ...]
    """Positions of the kernels that compute a part of its program."""


@dataclass(frozen=True)
class Offered:
    """The number of programs that derivations added to the e-graph, each proved equal to the operators that it replaces."""

    programs: int = 0
    is_compared: bool = True
    """False if time ended before any of their kernels was compared."""


@dataclass(frozen=True)
class RoundedProgram:
    """A program whose error was measured because its kernels round their operands, or the best program without such kernels."""

    rounding: int
    """Number of kernels that round."""
    kernels: int
    error: float
    """Error relative to the largest output, on the inputs that the check begins with."""
    predicted_us: float
    measured_us: float | None

    @property
    def time_us(self) -> tuple[float, str]:
        """Return the time, and a note if it was not measured."""
        return (self.predicted_us, " (predicted)") if self.measured_us is None else (self.measured_us, "")


@dataclass(frozen=True)
class KernelRow:
    """One kernel of a program: its fragment, operands, rules and time."""

    name: str
    implementation: str
    fragment: str
    shape: str
    time_us: float
    is_measured: bool
    flops: float
    size_bytes: int
    roofline_share: float
    rules: tuple[str, ...]
    source_nodes: tuple[str, ...]
    operands: tuple[int, ...]
    """Positions of the kernels whose results it reads."""
    steps: tuple[str, ...] = ()
    """The chain of equations from the input program's node to the kernel's result."""

    @property
    def kind(self) -> str:
        """Return the kind that counts and colours are grouped by: library, eoperator, opaque or reference."""
        return Implementation.parse(self.implementation).shown_kind

    @property
    def precision(self) -> str:
        """Return the precision that the kernel rounds the operands of its products to."""
        return Implementation.parse(self.implementation).precision

    @property
    def is_stored_rounded(self) -> bool:
        """Return whether the kernel writes its result in a narrower type than it computes it in."""
        return self.fragment.startswith(NARROW)

    @property
    def gigaflops_s(self) -> float:
        return self.flops / self.time_us / 1e3 if self.time_us > 0 else 0.0

    @property
    def gigabytes_s(self) -> float:
        return self.size_bytes / self.time_us / 1e3 if self.time_us > 0 else 0.0

    @property
    def intensity(self) -> float:
        return self.flops / self.size_bytes if self.size_bytes else 0.0


@dataclass(frozen=True)
class Finalist:
    """A program that was timed, with its predicted and its measured time."""

    name: str
    digest: str
    kernels: int
    predicted_us: float
    measured_us: float | None
    message: str = ""
    estimated: int = 0
    """Number of kernels whose costs in the prediction are estimates."""


@dataclass(frozen=True)
class InPlace:
    """A kernel of a finalist whose time inside this model's programs, on their data, differs from its time alone."""

    program: str
    implementation: str
    fragment: str
    alone_us: float | None
    in_place_us: float


KERNEL_KINDS = ("library", "eoperator", "opaque")
"""Kinds of kernels that are counted even if there are none."""
FEW_REPEATS = 3
"""Number of rounds of a race below which the number is printed."""
Kind: TypeAlias = Literal["wrong", "slow", "failed", "hung"]
REFUSALS: Mapping[Kind, str] = {
    "wrong": "wrong", "slow": "slow reference implementations", "failed": "failed", "hung": "hung"
}  # fmt: skip


@dataclass(frozen=True)
class Refused:
    """A kernel that was measured and may not be used."""

    kind: Kind
    implementation: str
    fragment: str
    reason: str


@dataclass(frozen=True)
class Growth:
    """The e-graph after one iteration."""

    e_nodes: int
    e_classes: int
    matches: int
    seconds: float


@dataclass(frozen=True)
class Outcome:
    """Everything about one finished run."""

    model: str
    device: str
    threads: int
    status: Literal["faster", "unchanged", "estimated"]
    """``estimated``: the device is not timed, so no program is called faster."""
    latency_us: Mapping[str, float | None]
    """None for the program without rules if there was no time to time it."""
    max_rel_err: float
    worst_output: str
    rules: tuple[RuleUse, ...]
    growth: tuple[Growth, ...]
    rule_statistics: tuple[Mapping[str, Any], ...]
    stop_reason: str
    search_seconds: float
    extract_method: str
    extract_optimal: bool
    extract_seconds: float
    kernels: tuple[KernelRow, ...]
    before: tuple[KernelRow, ...]
    finalists: tuple[Finalist, ...]
    shipped: str
    memory: Mapping[str, int]
    environment: Mapping[str, str]
    options: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    """Options that are needed to optimise a part of the model that is left to onnxruntime; they are among the notes, too."""
    seconds_total: float = 0.0
    files: tuple[str, ...] = ()
    kernel_counts: Mapping[str, int] = field(default_factory=dict)
    refused: tuple[Refused, ...] = ()
    model_digest: str = ""
    """Hash of the model's files, which shows later that an artefact was made from them."""
    check_notes: tuple[str, ...] = ()
    """Findings of the check of the saved files besides the largest error: accepted noise, rules and kernels that were excluded after a
    failure, and outputs that hardly depend on random inputs.
    """
    unsafe_rules: tuple[str, ...] = ()
    """Rules that were used without a proof because of ``--unsafe-rules``, with their verdicts."""
    derived: tuple[Derived, ...] = ()
    offered: Offered = Offered()
    repeats: int = 0
    """Number of rounds in which both onnxruntime and the shipped program were timed."""
    in_place: tuple[InPlace, ...] = ()
    stitched: tuple[Stitched, ...] = ()
    """Tensors of the shipped program that several kernels fill, each a box of them."""
    rule_notes: tuple[str, ...] = ()
    """Rules that were proved at the sizes of some matches because their certificates do not cover these."""
    inputs: Mapping[str, int] = field(default_factory=dict)
    """Number of inputs that results were compared on: ``given`` by the user, and ``random``."""
    precisions: Mapping[str, RoundedProgram] = field(default_factory=dict)
    """Time and error of the shipped program (``chosen``), of one that rounds wherever this is faster (``rounded``), and of the fastest that
    does not round (``float32``); empty if rounding was not allowed.
    """
    precision_note: str = ""
    """The reason why no kernel rounds although rounding was allowed."""
    keeps_subnormals: bool = False
    subnormal_weights: int = 0
    """Number of the model's weights that are subnormal numbers."""

    @property
    def has_subnormals(self) -> bool:
        """Whether the treatment of subnormal numbers (denormals) matters to the user."""
        return self.keeps_subnormals or self.subnormal_weights > 0

    @property
    def subnormals_text(self) -> str:
        """Return how the program treats subnormal numbers (denormals)."""
        weights = f" ({self.subnormal_weights} weights are)" if self.subnormal_weights else ""
        if self.keeps_subnormals:
            return f"subnormal numbers{weights} are kept"
        return f"subnormal numbers{weights} count as zero, also where onnxruntime was timed; --keep-subnormals keeps them"

    @property
    def speedup(self) -> dict[str, float | None]:
        return {f"over_{name}": self.over(name, 4) for name in ("onnxruntime", "unoptimized")}

    def over(self, name: str, digits: int) -> float | None:
        """Return the time of a program relative to the shipped one's, or None if it has no time."""
        time_us, optimized_us = self.latency_us[name], self.latency_us["optimized"]
        return None if time_us is None or optimized_us is None else round(time_us / optimized_us, digits)

    @property
    def estimated_us(self) -> dict[str, float]:
        """Return the estimated costs of the shipped program and of the one without rules, on a device without timing."""
        if self.status != "estimated":
            return {}
        costs_us = {finalist.name: finalist.predicted_us for finalist in self.finalists}
        return {"unoptimized": costs_us["unoptimized"], "optimized": costs_us[self.shipped]}

    @property
    def derivations_text(self) -> str:
        """Return in words how derivations took part; empty if nothing was derived."""
        offered, kernels = self.offered, {number for derived in self.derived for number in derived.kernels}
        if not offered.programs:
            return ""
        text = f"derivations: {offered.programs} programs proved equal; "
        if not offered.is_compared:
            return text + "time ended before they were compared"
        return text + (f"{len(kernels)} kernels come from them" if kernels else "the fastest program found has none of them")

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``--json`` prints."""
        last = self.growth[-1] if self.growth else Growth(0, 0, 0, 0.0)
        shipped = [finalist for finalist in self.finalists if finalist.name == self.shipped]
        return {
            "model": self.model,
            "device": self.device,
            "threads": self.threads,
            "status": self.status,
            "latency_us": {name: _rounded(self.latency_us[name]) for name in ("onnxruntime", "unoptimized", "optimized")},
            "speedup": self.speedup,
            **({"estimated_us": {name: round(us, 2) for name, us in costs_us.items()}} if (costs_us := self.estimated_us) else {}),
            "max_rel_err": self.max_rel_err,
            "check_notes": list(self.check_notes),
            "inputs": {name: self.inputs.get(name, 0) for name in ("given", "random")},
            "rules": [{"name": rule.name, "verdict": rule.verdict, "uses": rule.uses} for rule in self.rules],
            "search": {
                "iterations": len(self.growth),
                "e_nodes": last.e_nodes,
                "e_classes": last.e_classes,
                "stop_reason": self.stop_reason,
                "seconds": round(self.search_seconds, 3),
            },
            "extract": {"method": self.extract_method, "optimal": self.extract_optimal, "seconds": round(self.extract_seconds, 3)},
            **({"derivations": derivations} if (derivations := self._derivations()) else {}),
            **({"derived_programs": asdict(self.offered)} if self.offered.programs else {}),
            **({"predicted_us": round(shipped[0].predicted_us, 2)} if shipped else {}),
            **({"in_place": [asdict(row) for row in self.in_place]} if self.in_place else {}),
            **({"predicted_by_estimates": shipped[0].estimated} if shipped and shipped[0].estimated else {}),
            **({"repeats": self.repeats} if 0 < self.repeats < FEW_REPEATS else {}),
            "finalists": [
                {
                    "name": finalist.name, "shipped": finalist.name == self.shipped, "predicted_us": round(finalist.predicted_us, 2),
                    "measured_us": _rounded(finalist.measured_us), "message": finalist.message,
                }
                for finalist in self.finalists
            ],
            "kernels": {name: self.kernel_counts.get(name, 0) for name in dict.fromkeys([*KERNEL_KINDS, *self.kernel_counts])},
            "seconds_total": round(self.seconds_total, 3),
            "files": list(self.files),
            **({"subnormals": {"kept": self.keeps_subnormals, "weights": self.subnormal_weights}} if self.has_subnormals else {}),
            **({"hints": list(self.hints)} if self.hints else {}),
            **({"unsafe_rules": list(self.unsafe_rules)} if self.unsafe_rules else {}),
            **({"precision": self._precision()} if self.precisions or self.precision_note else {}),
        }

    def _precision(self) -> dict[str, Any]:
        """Return the requested precision, the times and errors of programs of several precisions, and the number of kernels that round."""
        return {
            "asked": self.options.get("precision", "fp32"),
            "tolerance": self.options["tolerance"]["relative"],
            "kernels": dict(sorted(Counter(row.precision for row in self.kernels).items())),
            "stored": sum(row.is_stored_rounded for row in self.kernels),
            "programs": {name: asdict(program) for name, program in self.precisions.items()},
            **({"note": self.precision_note} if self.precision_note else {}),
        }

    @property
    def precision_text(self) -> str:
        """Return in words how many kernels round, and the errors; empty if rounding was not allowed."""
        if not (self.precisions or self.precision_note):
            return ""
        counts = Counter(row.precision for row in self.kernels)
        rounding = ", ".join(f"{count} in {name}" for name, count in sorted(counts.items()) if name != PLAIN)
        text = f"kernels that round their operands: {rounding} of {len(self.kernels)}" if rounding else self.precision_note
        stored = sum(row.is_stored_rounded for row in self.kernels)
        parts = [f"results that are stored rounded: {stored}"] if stored else []
        for name, shown in (("float32", "in float32"), ("rounded", "rounded wherever that is faster")):
            if (program := self.precisions.get(name)) is not None and (name != "rounded" or program != self.precisions.get("chosen")):
                time_us, how = program.time_us
                parts.append(f"{shown} {time_us:.0f} us{how} at an error of {program.error:.2g}")
        accepted = f"tolerance {self.options['tolerance']['relative']:g}"
        return "; ".join([text, *parts, accepted])

    def _derivations(self) -> list[dict[str, Any]]:
        """Return the derivations among the rules, each with its uses and the operators that it was derived for."""
        operators: dict[str, list[str]] = {}
        for derived in self.derived:
            operators.setdefault(derived.name, []).append(derived.operator)
        return [{"name": r.name, "uses": r.uses, "operators": operators[r.name]} for r in self.rules if r.name in operators]

    def to_manifest(self) -> dict[str, Any]:
        """Return everything that does not depend on when or where the run happened, for the artefact."""
        data = asdict(self)
        for name in ("seconds_total", "files", "search_seconds", "extract_seconds", "hints"):
            del data[name]
        for growth in data["growth"]:
            del growth["seconds"]
        return data

    @staticmethod
    def from_manifest(data: Mapping[str, Any]) -> Outcome:
        """Read a manifest; durations, which it does not contain, are zero."""
        raw = dict(data)
        raw["rules"] = tuple(RuleUse(**rule) for rule in raw["rules"])
        raw["derived"] = tuple(
            Derived(**{**fields, "steps": tuple(map(tuple, fields["steps"])), "kernels": tuple(fields["kernels"])})
            for fields in raw.get("derived", ())
        )
        raw["offered"] = Offered(**raw.get("offered", {}))
        raw["stitched"] = tuple(map(Stitched.from_json, raw.get("stitched", ())))
        raw["precisions"] = {name: RoundedProgram(**fields) for name, fields in raw.get("precisions", {}).items()}
        raw["growth"] = tuple(Growth(seconds=0.0, **growth) for growth in raw["growth"])
        raw["refused"] = tuple(Refused(**row) for row in raw.get("refused", ()))
        raw["in_place"] = tuple(InPlace(**fields) for fields in raw.get("in_place", ()))
        for name in ("check_notes", "unsafe_rules", "rule_notes"):
            raw[name] = tuple(raw.get(name, ()))
        raw["finalists"] = tuple(Finalist(**finalist) for finalist in raw["finalists"])
        for name in ("kernels", "before"):
            raw[name] = tuple(
                KernelRow(**{**row, **{k: tuple(row.get(k, ())) for k in ("rules", "source_nodes", "operands", "steps")}})
                for row in raw[name]
            )
        raw["rule_statistics"], raw["notes"] = tuple(raw["rule_statistics"]), tuple(raw["notes"])
        return Outcome(search_seconds=0.0, extract_seconds=0.0, **raw)


def _rounded(time_us: float | None) -> float | None:
    return None if time_us is None else round(time_us, 2)


def summary(rows: Sequence[Refused]) -> str:
    """Return ``kernels refused: 1 wrong, 4 slow reference implementations``; empty if there are none."""
    counts = Counter(row.kind for row in rows)
    parts = [f"{counts[kind]} {description}" for kind, description in REFUSALS.items() if counts[kind]]
    return f"kernels refused: {', '.join(parts)}" if parts else ""


def read_outcome(artefact: Path) -> Outcome:
    """Return the outcome of the run that made the artefact."""
    try:
        path = find_folder(artefact) / MANIFEST
    except ArtefactError as error:
        raise ModelError(error.what, where=error.where, fix=error.fix) from error
    try:
        return Outcome.from_manifest(json.loads(path.read_text(encoding="utf-8"))["run"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{artefact} is not an artefact of this version: {error}", fix="optimise the model again") from error
