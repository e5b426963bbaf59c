"""The gate: a program enters the e-graph only if a certificate covers it, or if it is proved equal here, at its own sizes.

Matches of rules and of merge rules, corrected right sides and derived programs are judged by one function, ``Gate.judge``. Its proofs are
kept in the profile database with a hash of the sources that they depend on, so a statement is proved once for all runs, whoever asked for
it.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from egraph.engine.applications import BROKEN
from egraph.errors import EinsatError
from egraph.rule import Binding, MergeRule, Mismatch, Rounding, Rule
from egraph.tensor import Node, format_fragment
from egraph.tensor.boxes import axis_names
from runtime.profile import Database, ProofRow
from verify.scope import Tree, outside

if TYPE_CHECKING:
    from verify.comparison import Comparison

ROOT = Path(__file__).parent.parent.parent


@cache
def sources_digest(folders: tuple[str, ...], suffixes: tuple[str, ...] = (".py",)) -> str:
    """Return a hash of the names and contents of files with these suffixes below some folders of the project."""
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted(path for path in (ROOT / folder).rglob("*.*") if path.suffix in suffixes):
            text = path.read_bytes()
            digest.update(f"{path.relative_to(ROOT).as_posix()} {len(text)}:".encode() + text)
    return digest.hexdigest()[:32]


SOURCES = ("egraph/derive", "egraph/partial", "egraph/tensor", "verify")
"""Sources that decide which programs are derived and whether they are proved."""

Numbers = Mapping[int, float]
"""The constant placeholders whose elements are all one number, with that number."""
Prover = Callable[[Node, Node, Rounding, Numbers, bool], str]
"""Returns the part of an equality of two fragments over the same placeholders that is not proved, or '' if they are proved equal. The last
argument says whether they are also compared on random operands.
"""


def sources_key() -> str:
    """Return a hash of the sources that derivations and proofs depend on."""
    return sources_digest(SOURCES)


def prove(left: Node, right: Node, rounding: Rounding, numbers: Numbers | None = None, is_compared: bool = False) -> str:
    """Return the part of an equality of two programs at their own sizes that is not proved, or '' if they are proved equal."""
    from verify.application import equal_at_sizes  # the prover is not imported if everything was proved before

    return equal_at_sizes(left, right, rounding, numbers, is_compared=is_compared)


@dataclass(frozen=True, slots=True)
class Ruling:
    """An admission, or a refusal with its ``reason``. ``comparison``: how the sides compare on random operands, if that was asked for."""

    reason: str = ""
    comparison: Comparison | None = None


@dataclass(eq=False)
class Gate:
    """Decides which programs may be joined to the e-class that they are said to compute, and keeps the proofs."""

    database: Database = field(default_factory=Database.in_memory)
    prover: Prover = prove
    proved_now: int = 0
    """Number of programs that were proved in this run, not read from the database."""
    _comparisons: dict[object, Comparison] = field(default_factory=dict, repr=False)
    """Comparisons by the compared programs, because a rule and its mirror image compare the same two."""

    def judge(
        self, lefts: Sequence[Node], rights: Sequence[Node], rounding: Rounding, numbers: Numbers | None = None, *,
        is_proved: bool = False, is_compared: bool = False,
    ) -> Ruling:  # fmt: skip
        """Judge right-side programs of left sides over the same placeholders.

        ``is_proved``: a certificate covers them; otherwise each is proved here. ``is_compared``: proved programs are also compared on
        random operands, as for every rule that is not shipped.
        """
        numbers = numbers or {}
        for left, right in () if is_proved else zip(lefts, rights, strict=True):
            if reason := self._objection(left, right, rounding, numbers, is_compared):
                return Ruling(reason)
        if not is_compared:
            return Ruling()
        comparison = self._compared(lefts, rights, numbers)
        return Ruling(comparison.reason, comparison)

    def _compared(self, lefts: Sequence[Node], rights: Sequence[Node], numbers: Numbers) -> Comparison:
        from verify.comparison import compare_sides

        key = frozenset((tuple(lefts), tuple(rights))), tuple(numbers.items())
        if key not in self._comparisons:
            self._comparisons[key] = compare_sides(lefts, rights, numbers)
        return self._comparisons[key]

    def _objection(self, left: Node, right: Node, rounding: Rounding, numbers: Numbers, is_compared: bool) -> str:
        """Return the part of an equality that is not proved; it is proved here unless the database has the proof."""
        fixed = "".join(f" ${index}={number!r}" for index, number in sorted(numbers.items()))
        statement = left.digest + fixed, right.digest, rounding
        proof = self.database.find(ProofRow, *statement)
        if proof is None or proof.sources != sources_key():
            started = time.perf_counter()
            try:
                objection = self.prover(left, right, rounding, numbers, is_compared)
            except (EinsatError, RecursionError, *BROKEN) as error:
                objection = f"the prover gave up: {type(error).__name__}: {error}"
            proof = ProofRow(*statement, sources_key(), objection, time.perf_counter() - started)
            self.proved_now += not objection
            self.database.put(proof)
        return proof.open


@dataclass(eq=False)
class Admission:
    """Admits applications of a rule: those that its certificate covers, and others if they are proved at their own sizes.

    Matches of one kind, with equal types, attributes and sides, are judged once.
    """

    rule: Rule | MergeRule
    covers: Tree
    tried: bool = False
    """Whether matches that the certificate covers are also compared at their own sizes, because the function of a rule that is not shipped
    may treat plain numbers in another way than it did in the proof.
    """
    gate: Gate = field(default_factory=Gate)
    proved_here: int = 0
    """Number of kinds of matches outside the certificate that were proved at their own sizes."""
    compared: list[Comparison] = field(default_factory=list)
    """Comparisons of kinds of matches outside the certificate and, for a user's rule, of all."""
    _reasons: dict[object, str] = field(default_factory=dict, repr=False)

    def __call__(self, bindings: Sequence[Binding], lefts: Sequence[Node], rights: Sequence[Node]) -> str:
        types = tuple((tuple(b.types.items()), tuple(b.attributes.items()), tuple(b.numbers.items())) for b in bindings)
        key = types, tuple(lefts), tuple(rights)
        if key not in self._reasons:
            reason = outside(self.covers, self.rule, bindings)
            self._reasons[key] = self._validated(reason, bindings, lefts, rights) if reason or self.tried else ""
        return self._reasons[key]

    def _validated(self, reason: str, bindings: Sequence[Binding], lefts: Sequence[Node], rights: Sequence[Node]) -> str:
        numbers = {} if isinstance(self.rule, MergeRule) else numbers_of(self.rule, bindings[0])
        ruling = self.gate.judge(lefts, rights, self.rule.rounding, numbers, is_proved=not reason, is_compared=True)
        if ruling.comparison is None:
            return f"{reason}; at these sizes alone it could not be proved either: {ruling.reason}"
        if not ruling.reason:
            self.proved_here += bool(reason)
            self.compared.append(ruling.comparison)
        return ruling.reason


@dataclass(eq=False)
class Correction:
    """Corrects a rule that holds in part: each kind of match once, if a program is proved equal to the left side.

    The result is compared on random operands, too, as for every rule that is not shipped.
    """

    rule: Rule
    gate: Gate = field(default_factory=Gate)
    corrected: list[str] = field(default_factory=list)
    """For each kind of match, the positions at which the sides differ."""
    compared: list[Comparison] = field(default_factory=list)
    _programs: dict[object, tuple[Node, ...] | Mismatch] = field(default_factory=dict, repr=False)

    def __call__(self, binding: Binding, left: Node, right: Node) -> tuple[Node, ...]:
        numbers = numbers_of(self.rule, binding)
        key = left, right, tuple(numbers.items())
        if key not in self._programs:
            self._programs[key] = self._corrected(left, right, numbers)
        programs = self._programs[key]
        if isinstance(programs, Mismatch):
            raise programs
        return programs

    def _corrected(self, left: Node, right: Node, numbers: Numbers) -> tuple[Node, ...] | Mismatch:
        from verify.corrected import corrected

        result = corrected(left, right, numbers, self.rule.rounding)
        if not result.programs:
            return Mismatch(result.reason)
        lefts = (left,) * len(result.programs)
        ruling = self.gate.judge(lefts, result.programs, self.rule.rounding, numbers, is_proved=True, is_compared=True)
        if ruling.reason or ruling.comparison is None:
            return Mismatch(ruling.reason)
        self.compared.append(ruling.comparison)
        if result.where is not None and result.where.boxes:
            self.corrected.append(f"{format_fragment(left)} {result.where.describe(axis_names(left))}")
        return result.programs


def numbers_of(rule: Rule, binding: Binding) -> dict[int, float]:
    """Return the constant placeholders of a rule's sides that are one number at a match."""
    return {index: binding.numbers[v.name] for index, v in enumerate(rule.variables) if v.name in binding.numbers}
