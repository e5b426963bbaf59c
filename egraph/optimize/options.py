"""Everything the user can choose, as one frozen value that is stored in the artefact."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from egraph.policy import Policy
from egraph.tolerance import Tolerance
from runtime.devices import HOST

Allow: TypeAlias = Literal["exact", "reassociate", "finite"]
Precision: TypeAlias = Literal["fp32", "tf32", "bf16", "fp16", "int8", "auto"]
"""The precision that products may round their operands to: none, one wherever it is faster, or any as far as the tolerance allows."""
OFFERED: Mapping[Precision, tuple[str, ...]] = {
    "fp32": (), "tf32": ("tf32",), "bf16": ("bf16",), "fp16": ("fp16",), "int8": ("bf16", "int8"), "auto": ("tf32", "bf16", "bf16x3"),
}  # fmt: skip
"""The precisions besides float32 that kernels are offered in, if the target's kernels have them. fp16, because of its small range, and
int8, whose ranges are those of the user's inputs, are offered only by name. With int8, products that bytes do not suit may be computed in
bf16. bf16x3: three products of bf16, of operands that are sums of two numbers each.
"""
CONSTRAINED: tuple[Precision, ...] = ("auto", "int8")
"""Precisions with which the search itself keeps to the tolerance, kernel by kernel; with others, a program beyond it is rejected."""
Choice: TypeAlias = tuple[range, ...]
"""The sizes that an axis may have, as ranges; a single number is a range of one."""
ANY = range(0)
"""Marks that an axis may have any other size as well, for which no program is planned."""
DEFAULT_BUCKETS = 4
"""Number of sizes of a range that are planned, including its ends, unless ``--buckets`` gives another."""


@dataclass(frozen=True)
class SizeRequest:
    """The part of ``--shape`` that can be resolved only with the model: names of sizes, and several sizes for one axis."""

    inputs: Mapping[str, tuple[Choice, ...]] = field(default_factory=dict)
    """The sizes of inputs that have several for an axis."""
    names: Mapping[str, Choice] = field(default_factory=dict)
    """Sizes by their names in the model."""
    buckets: int = DEFAULT_BUCKETS

    @property
    def has_several(self) -> bool:
        """Whether any axis may have more than one size."""
        return any(map(is_several, self._choices))

    @property
    def plans_several(self) -> bool:
        """Whether programs for more than one size are planned."""
        return any(sum(map(len, choice)) > 1 for choice in self._choices)

    @property
    def _choices(self) -> tuple[Choice, ...]:
        return tuple(choice for choices in (self.names.values(), *self.inputs.values()) for choice in choices)


def is_several(choice: Choice) -> bool:
    return sum(map(len, choice)) > 1 or ANY in choice


def choice_text(choice: Choice) -> str:
    """Return the sizes of an axis as ``--shape`` takes them."""
    return "/".join("*" if span == ANY else f"{span[0]}..{span[-1]}" if len(span) > 1 else str(span[0]) for span in choice)


@dataclass(frozen=True)
class Options:
    """How to optimise one model. The defaults are the command line's."""

    model: Path
    output: Path | None = None
    device: str = HOST
    threads: int = 1
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    constants: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Inputs that become constants of the program, with their numbers as written by the user."""
    size_request: SizeRequest = field(default_factory=SizeRequest)
    """Sizes that become ``shapes`` once the model is read; if several are planned, each run has its own."""
    budget_seconds: float = 55.0
    max_nodes: int = 50_000
    finalists: int = 4
    rule_files: tuple[Path, ...] = ()
    skip_rules: tuple[str, ...] = ()
    derivations: bool = True
    partial: bool = False
    unsafe_rules: bool = False
    allow: Allow = "finite"
    keep_subnormals: bool = False
    tolerance: Tolerance = field(default_factory=Tolerance)
    precision: Precision = "fp32"
    inputs: tuple[Path, ...] = ()
    checks: int = 3
    database: Path | None = None
    frozen: bool = False
    again: bool = False
    seed: int = 0
    report: Path | None = None
    dump_folder: Path | None = None
    profiles: tuple[Path, ...] = ()
    """Files of records that are added to the profile database."""
    policy: Policy = Policy()
    json: bool = False
    verbosity: int = 0

    @property
    def is_exact_below_normal(self) -> bool:
        """Whether subnormal numbers are kept: if the user asks for it, or if only exact rules are allowed."""
        return self.keep_subnormals or self.allow == "exact"

    def stored(self) -> dict[str, Any]:
        """Return the options that decide the result as JSON data, without the places of files and the verbosity."""
        return {
            "device": self.device, "threads": self.threads, "shapes": {k: list(v) for k, v in sorted(self.shapes.items())},
            "constants": {k: list(v) for k, v in sorted(self.constants.items())},
            "budget_seconds": self.budget_seconds, "max_nodes": self.max_nodes, "finalists": self.finalists,
            "rule_files": [path.name for path in self.rule_files], "skip_rules": sorted(self.skip_rules), "derivations": self.derivations,
            "partial": self.partial,
            "keep_subnormals": self.is_exact_below_normal, "unsafe_rules": self.unsafe_rules, "allow": self.allow,
            "checks": self.checks, "seed": self.seed, "precision": self.precision,
            "inputs": [path.name for path in self.inputs],
            "policy": self.policy.stored(),
            "tolerance": {"relative": self.tolerance.relative, "absolute": self.tolerance.absolute},
        }  # fmt: skip
