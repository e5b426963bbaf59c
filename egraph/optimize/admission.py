"""Admit the rules of a run: the shipped ones and the user's, without the skipped and the disallowed, each with its proof.

Rules enter the e-graph with a proof, and apply where it reaches or where they are proved on the spot.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from egraph.derive.derivation import AnyRule, DerivationRule, RegionRule
from egraph.derive.registry import DERIVATIONS
from egraph.errors import RuleError
from egraph.optimize.options import Allow
from egraph.partial.stitching import partial_rules
from egraph.rewrite.file import load_rules
from egraph.rule import Binding, MergeRule, Mismatch, Rule
from egraph.tensor import Node, format_fragment
from egraph.tensor.boxes import Box, axis_names
from egraph.tensor.ops.reference import fragment_expression
from verify.certificates import certify, shipped
from verify.proof import Proof
from verify.scope import Tree, outside

if TYPE_CHECKING:
    from verify.comparison import Comparison


VALIDATED = "proved for these sizes"
PROVED = ("proved", VALIDATED)
Tell = Callable[[str], None]


@dataclass(eq=False)
class Admission:
    """A rule's pass: yes where its certificate reaches, else by proving the application at its own sizes.

    A kind of match, of equal types, attributes and sides, is judged once.
    """

    rule: Rule | MergeRule
    covers: Tree
    tried: bool = False
    """Whether what the certificate covers is compared at its own sizes too: the function of a rule that does not ship may do something
    else with plain numbers than it did in the proof."""
    proved_here: int = 0
    """Kinds of matches outside the certificate that were proved at their own sizes."""
    compared: list[Comparison] = field(default_factory=list)
    """What was compared of kinds of matches outside the certificate, of a user's rule of all."""
    _known: dict[object, str] = field(default_factory=dict, repr=False)

    def __call__(self, bindings: Sequence[Binding], lefts: Sequence[Node], rights: Sequence[Node]) -> str:
        types = tuple((tuple(b.types.items()), tuple(b.attributes.items()), tuple(b.numbers.items())) for b in bindings)
        key = types, tuple(lefts), tuple(rights)
        if key not in self._known:
            reason = outside(self.covers, self.rule, bindings)
            self._known[key] = self._validated(reason, bindings, lefts, rights) if reason or self.tried else ""
        return self._known[key]

    def _validated(self, reason: str, bindings: Sequence[Binding], lefts: Sequence[Node], rights: Sequence[Node]) -> str:
        from verify.application import objection_to  # the prover: seldom needed
        from verify.comparison import compare_sides

        names = () if isinstance(self.rule, MergeRule) else [variable.name for variable in self.rule.variables]
        numbers = {i: bindings[0].numbers[name] for i, name in enumerate(names) if name in bindings[0].numbers}
        if reason and (open_text := objection_to(lefts, rights, numbers)):
            return f"{reason}; at these sizes alone it could not be proved either: {open_text}"
        found = compare_sides(lefts, rights, numbers)
        if not found.reason:
            self.proved_here += bool(reason)
            self.compared.append(found)
        return found.reason


@dataclass(eq=False)
class Correction:
    """What corrects a rule that holds in part: each kind of match once, where a program is proved equal to the left side.

    A user's rule is compared on random operands, too, as every rule that does not ship.
    """

    rule: Rule
    corrected: list[str] = field(default_factory=list)
    """Where the sides of each kind of match differ."""
    compared: list[Comparison] = field(default_factory=list)
    _known: dict[object, tuple[Node, ...] | Mismatch] = field(default_factory=dict, repr=False)

    def __call__(self, binding: Binding, left: Node, right: Node) -> tuple[Node, ...]:
        numbers = {i: binding.numbers[v.name] for i, v in enumerate(self.rule.variables) if v.name in binding.numbers}
        key = left, right, tuple(numbers.items())
        if key not in self._known:
            self._known[key] = self._corrected(left, right, numbers)
        known = self._known[key]
        if isinstance(known, Mismatch):
            raise known
        return known

    def _corrected(self, left: Node, right: Node, numbers: Mapping[int, float]) -> tuple[Node, ...] | Mismatch:
        from verify.comparison import compare_sides
        from verify.corrected import corrected

        found = corrected(left, right, numbers, self.rule.rounding)
        if not found.programs:
            return Mismatch(found.reason)
        compared = compare_sides((left,) * len(found.programs), found.programs, numbers)
        if compared.reason:
            return Mismatch(compared.reason)
        self.compared.append(compared)
        if found.where is not None and found.where.boxes:
            self.corrected.append(f"{format_fragment(left)} {found.where.describe(axis_names(left))}")
        return found.programs


def admitted(
    rules: Iterable[Rule | MergeRule], *, unsafe: bool = False, where: Mapping[str, Path] | None = None, tell: Tell = lambda text: None
) -> tuple[Rule | MergeRule, ...]:
    """Return the rules that may be used, with their verdicts; ``where``: the files of those that do not ship.

    A user's rule is proved here unless that has been done; where that fails, RuleError is raised. A shipped rule whose
    certificate is not current has its applications proved one by one. A shipped rule without a proof is left out.
    ``unsafe`` lets rules without a proof in, but for those that are corrected: each of their matches needs one.
    """
    rules = tuple(rules)
    files = where or {}
    certificates = shipped()
    users = certify([rule for rule in rules if rule.name in files], _prove, tell=tell)
    chosen: list[Rule | MergeRule] = []
    stale = 0
    for rule in rules:
        certificate = users.get(rule.name) or certificates.current(rule)
        if isinstance(rule, Rule) and rule.corrected and (unsafe or certificate is None or certificate.is_proved):
            chosen.append(replace(rule, verdict="proved for these sizes", corrects=Correction(rule)))
        elif certificate is None:
            stale += 1
            chosen.append(replace(rule, verdict="proved for these sizes", admits=Admission(rule, covers=False)))
        elif certificate.is_proved:
            admission = Admission(rule, certificate.covers["tree"], tried=rule.name in files)
            chosen.append(replace(rule, verdict=certificate.verdict, admits=admission))
        elif unsafe:
            chosen.append(replace(rule, verdict=certificate.verdict))
        elif rule.name in files:
            fix = "`python -m verify` on the file says more; --unsafe-rules uses the rule all the same"
            what = f"rule {rule.name} is not proved ({certificate.verdict}): {certificate.reason}"
            raise RuleError(what, where=str(files[rule.name]), fix=fix)
    if stale:
        tell(f"{stale} shipped rules have no current certificate (make prove): their applications are proved one by one")
    return tuple(chosen)


SECONDS = 60.0
"""Of the processor's time for the proof of one rule of a user's."""


def _prove(rule: Rule | MergeRule) -> Proof:
    from verify.prove import Effort, prove  # half a second, and seldom needed

    effort = Effort(seconds=SECONDS)
    if isinstance(rule, Rule) and rule.corrected:
        from verify.corrected import prove_corrected

        return prove_corrected(rule, effort)
    return prove(rule, effort)


def unproved(rules: Iterable[Rule | MergeRule]) -> tuple[str, ...]:
    """Return the rules that are in use without a proof, with their verdicts."""
    return tuple(f"{rule.name} ({rule.verdict})" for rule in rules if rule.verdict not in PROVED)


def notes(rules: Sequence[Rule | MergeRule]) -> tuple[str, ...]:
    """Return which rules were proved at the sizes of their matches, outside what their certificates cover, what was corrected and
    what was compared."""
    gates = {rule.name: rule.admits for rule in rules if isinstance(rule.admits, Admission)}
    proved = [f"{name} {gate.proved_here}" for name, gate in gates.items() if gate.proved_here]
    told = [f"kinds of matches outside a certificate, proved at their own sizes: {', '.join(proved)}"] if proved else []
    corrections = {rule.name: rule.corrects for rule in rules if isinstance(rule, Rule) and isinstance(rule.corrects, Correction)}
    for name, correction in corrections.items():
        told += [f"{name} is corrected, and proved as a whole: {where}" for where in correction.corrected]
    compared = {name: gate.compared for name, gate in gates.items() if gate.tried}
    compared |= {name: correction.compared for name, correction in corrections.items()}
    compared["those of shipped rules"] = [found for gate in gates.values() if not gate.tried for found in gate.compared]
    for name, kinds in compared.items():
        if kinds:
            least = max(kinds, key=lambda each: (each.fraction, each.elements))
            told.append(f"kinds of matches compared on random operands: {name} {len(kinds)}; of the one with least certainty {least}")
    return tuple(told)


FEW_POSITIONS, MANY_POSITIONS = 10, 20
"""Positions at which a mutant is compared with an operator, before and after those that agree hardly anywhere are left out."""


def agreement_with(original: Node) -> Callable[[Node], float]:
    """Return what says at which share of some positions a program is seen to agree with an operator."""
    from verify.disagreement import agreement

    share = agreement(fragment_expression(original), FEW_POSITIONS, MANY_POSITIONS)
    return lambda program: share(fragment_expression(program))


def boxes_between(original: Node, program: Node) -> tuple[Box, ...] | None:
    """Return disjoint boxes outside of which a program is proved equal to an operator; None where that is not decided."""
    from verify.disagreement import LITTLE_WORK, disagreement

    difference = disagreement(fragment_expression(original), fragment_expression(program), LITTLE_WORK)
    return None if difference is None else difference.boxes


PARTIAL = partial_rules(agreement_with, boxes_between)
"""Joined to the derivation rules where they are asked for."""


ALLOWED = {
    "exact": ("exact",),
    "reassociate": ("exact", "reassociates"),
    "finite": ("exact", "reassociates", "assumes finite"),
}


def gather(files: Sequence[Path]) -> tuple[tuple[Rule | MergeRule, ...], dict[str, Path]]:
    """Return the shipped rules and those of the files, and the files by the names of their rules; names must be unique."""
    from egraph.rules import RULES

    rules: dict[str, Rule | MergeRule] = {rule.name: rule for rule in RULES}
    where: dict[str, Path] = {}
    for path in files:
        for rule in load_rules(path):
            if rule.name in rules:
                raise RuleError(f"two rules are called {rule.name}", where=str(path), fix="rename one of them")
            rules[rule.name] = rule
            where[rule.name] = path
    return tuple(rules.values()), where


def choose_rules(
    files: Sequence[Path], skip: Sequence[str], *, allow: Allow, unsafe: bool, tell: Tell = lambda text: None
) -> tuple[Rule | MergeRule, ...]:
    """Return the rules to saturate with, each with its verdict; ``tell`` hears which rules are being proved."""
    rules, where = gather(files)
    names = [rule.name for rule in (*rules, *DERIVATIONS, *PARTIAL)]
    for name in skip:
        if name not in names:
            close = difflib.get_close_matches(name, names, n=3, cutoff=0.4)
            raise RuleError(
                f"--skip-rule {name}: there is no such rule" + (f"; did you mean {' or '.join(close)}?" if close else ""),
                fix="python -m egraph.optimize --list-rules shows all names",
            )
    wanted = [rule for rule in rules if rule.name not in skip and rule.rounding in ALLOWED[allow]]
    return admitted(wanted, unsafe=unsafe, where=where, tell=tell)


def choose_derivations(
    skip: Sequence[str], *, allow: Allow, enabled: bool = True, partial: bool = False
) -> tuple[AnyRule, ...]:  # fmt: skip
    """Return the derivation rules to use; the names in ``skip`` are known to exist."""
    offered = (*DERIVATIONS, *(PARTIAL if partial else ())) if enabled else ()
    return tuple(rule for rule in offered if rule.name not in skip and rule.rounding in ALLOWED[allow])


def list_rules(files: Sequence[Path]) -> str:
    """Return one line a rule: name, verdict, rounding, equation; derivation rules last."""
    rules, where = gather(files)
    judged = {rule.name: rule.verdict for rule in admitted(rules, unsafe=True, where=where)}
    rows: list[tuple[str, str, str, str]] = [(rule.name, judged[rule.name], rule.rounding, rule.text.splitlines()[0]) for rule in rules]
    derivations = (*DERIVATIONS, *PARTIAL)
    rows += [(rule.name, VALIDATED, rule.rounding, _derives(rule)) for rule in derivations]
    widths = [max([len(row[column]) for row in rows], default=0) for column in range(3)]
    lines = [f"{name:{widths[0]}}  {verdict:{widths[1]}}  {rounding:{widths[2]}}  {text}" for name, verdict, rounding, text in rows]
    return "\n".join([*lines, f"{len(rules)} rules" + f", {len(derivations)} derivation rules"])


def _derives(rule: AnyRule) -> str:
    operators = ", ".join(rule.operators)
    if isinstance(rule, DerivationRule):
        return f"derives programs of {operators}"
    return f"computes several {operators} by {'others' if isinstance(rule, RegionRule) else 'one'}"
