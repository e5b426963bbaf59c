"""Targets, which code is made for, and implementations of kernels, as values.

>>> Implementation.parse("onednn.matmul")
Implementation(kind='library', name='onednn.matmul', target=None)
>>> Implementation.parse("view").is_free
True
>>> Implementation.parse("onednn.matmul").in_precision("bf16").text
'onednn.matmul@bf16'
>>> Implementation.parse("cudnn.convolution@tf32").with_plan("41+0:TILE_SIZE=4").text
'cudnn.convolution@tf32#41+0:TILE_SIZE=4'

An implementation's text is what the profile database and artefacts store; it is parsed once, where it is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["library", "generated", "reference", "opaque", "view", "constant"]
"""``library``: one call of a vendor library; ``generated``: code made for the fragment; ``reference``: the operators' meanings,
evaluated; ``opaque``: onnxruntime; ``view`` and ``constant`` launch nothing."""

PLAIN = "float32"
ELEMENT_TYPES: Mapping[str, str] = {"bf16": "bfloat16", "fp16": "float16", "int8": "int8"}
"""The element types that kernels of a precision round their operands to."""


@dataclass(frozen=True, slots=True)
class Target:
    """The target of code. ``kind`` names a folder of ``lower.targets``, and the device of ``runtime.devices`` that runs the code."""

    kind: str
    architecture: str = ""
    features: tuple[str, ...] = ()
    """Features that kernels of this target may use beyond the architecture: a processor's model and instructions."""
    precision: str = PLAIN
    """The arithmetic in which a float32 kernel may compute; if it is not float32, it is part of the implementation's text."""
    precisions: tuple[str, ...] = ()
    """Further precisions in which kernels may be offered."""


@dataclass(frozen=True, slots=True)
class Implementation:
    """How one kernel is computed, and for which target. Kernels that launch nothing or that onnxruntime runs have no target."""

    kind: Kind
    name: str
    """``<library>.<kernel>``, the generator's name, or the kind itself. The precision follows if it is not float32, then the library's
    plan if it is not the one that the library prefers. The name is empty if a kernel is priced and never run. The profile database and
    artefacts store this text."""
    target: Target | None = field(default=None, compare=False)
    """The target, which texts omit because the device is named beside them."""

    def __hash__(self) -> int:
        return hash(self.name)  # tens of thousands of candidates are hashed, and names distinguish almost all

    def __str__(self) -> str:
        return self.text

    @property
    def text(self) -> str:
        """Return the text that the profile database and artefacts store: ``onednn.matmul``, or ``cudnn.matmul@tf32``."""
        return self.name

    @staticmethod
    def parse(text: str, target: Target | None = None) -> Implementation:
        """Return the implementation of a text, for this target."""
        text, _, plan = text.partition("#")
        name, _, precision = text.partition("@")
        kind: Kind = SPECIAL.get(name) or ("library" if "." in name else "generated")
        if kind in UNTARGETED:
            return Implementation(kind, name)
        precision = precision or (target.precision if target else PLAIN)
        shown = name if precision == PLAIN else f"{name}@{precision}"
        shown += f"#{plan}" if plan else ""
        return Implementation(kind, shown, replace(target, precision=precision) if target else None)

    def in_precision(self, precision: str) -> Implementation:
        """Return the same kernel in another precision."""
        name = self.name.partition("#")[0].partition("@")[0]
        if precision == PLAIN:
            return Implementation(self.kind, name, replace(self.target, precision=PLAIN) if self.target else None)
        return Implementation.parse(f"{name}@{precision}", self.target)

    @property
    def precision(self) -> str:
        """Return the precision to which a kernel rounds its operands; float32 if it keeps them."""
        return self.name.partition("#")[0].partition("@")[2] or PLAIN

    @property
    def plan(self) -> str:
        """Return the library's name of the plan that computes the kernel; empty for the plan that the library prefers."""
        return self.name.partition("#")[2]

    def with_plan(self, plan: str) -> Implementation:
        """Return the same kernel by one of the library's plans, or, for an empty text, by the one that the library prefers."""
        name = self.name.partition("#")[0]
        return replace(self, name=f"{name}#{plan}" if plan else name)

    @property
    def library(self) -> str:
        """Return the library's name; empty if no library computes the kernel."""
        return self.name.partition(".")[0] if self.kind == "library" else ""

    @property
    def shown_kind(self) -> str:
        """Return the kind that plans and reports show; they call generated kernels eOperators."""
        return "eoperator" if self.kind == "generated" else self.kind

    @property
    def is_library(self) -> bool:
        return self.kind == "library"

    @property
    def is_free(self) -> bool:
        """Return whether nothing is launched."""
        return self.kind in ("view", "constant")

    @property
    def is_opaque(self) -> bool:
        return self.kind == "opaque"

    @property
    def is_view(self) -> bool:
        return self.kind == "view"

    @property
    def is_generated(self) -> bool:
        """Return whether the fragment alone determines what runs: code generated from it, or its meaning, evaluated."""
        return self.kind in ("generated", "reference")


SPECIAL: Mapping[str, Kind] = {"reference": "reference", "opaque": "opaque", "view": "view", "constant": "constant"}
UNTARGETED = ("opaque", "view", "constant")
OPAQUE, VIEW, UNNAMED = (Implementation.parse(text) for text in ("opaque", "view", ""))
