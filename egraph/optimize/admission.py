"""Admit the rules of a run: the shipped ones and the user's, except skipped and disallowed ones, each with its proof.

A rule is used with a proof. It applies to a match if the proof covers it, or if the match itself is proved during the run.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from egraph.derive.derivation import AnyRule, DerivationRule, RegionRule
from egraph.derive.registry import DERIVATIONS
from egraph.errors import RuleError
from egraph.optimize.gate import Admission, Correction, Gate
from egraph.optimize.options import Allow
from egraph.partial.stitching import partial_rules
from egraph.rewrite.file import load_rules
from egraph.rule import MergeRule, Rule
from egraph.tensor import Node
from egraph.tensor.boxes import Box
from egraph.tensor.ops.reference import fragment_expression
from verify.certificates import certify, shipped
from verify.proof import Proof

VALIDATED = "proved for these sizes"
PROVED = ("proved", VALIDATED)
Tell = Callable[[str], None]


def admitted(
    rules: Iterable[Rule | MergeRule], *, unsafe: bool = False, where: Mapping[str, Path] | None = None,
    tell: Tell = lambda text: None, gate: Gate | None = None,
) -> tuple[Rule | MergeRule, ...]:  # fmt: skip
    """Return the rules that may be used, with their verdicts; ``where`` holds the files of rules that are not shipped.

    A user's rule is proved here unless that has been done before; if the proof fails, RuleError is raised. If the certificate of a shipped
    rule is not current, its applications are proved one by one. A shipped rule without a proof is excluded. ``unsafe`` admits rules without
    a proof, except corrected ones, because each of their matches needs a proof.
    """
    rules = tuple(rules)
    files = where or {}
    gate = gate or Gate()
    certificates = shipped()
    users = certify([rule for rule in rules if rule.name in files], _prove, tell=tell)
    chosen: list[Rule | MergeRule] = []
    stale = 0
    for rule in rules:
        certificate = users.get(rule.name) or certificates.current(rule)
        if isinstance(rule, Rule) and rule.corrected and (unsafe or certificate is None or certificate.is_proved):
            chosen.append(replace(rule, verdict="proved for these sizes", corrects=Correction(rule, gate)))
        elif certificate is None:
            stale += 1
            chosen.append(replace(rule, verdict="proved for these sizes", admits=Admission(rule, covers=False, gate=gate)))
        elif certificate.is_proved:
            admission = Admission(rule, certificate.covers["tree"], tried=rule.name in files, gate=gate)
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
"""Processor time, in seconds, for the proof of one user's rule."""


def _prove(rule: Rule | MergeRule) -> Proof:
    from verify.prove import Effort, prove  # the import takes half a second, and is seldom needed

    effort = Effort(seconds=SECONDS)
    if isinstance(rule, Rule) and rule.corrected:
        from verify.corrected import prove_corrected

        return prove_corrected(rule, effort)
    return prove(rule, effort)


def unproved(rules: Iterable[Rule | MergeRule]) -> tuple[str, ...]:
    """Return the rules that are used without a proof, with their verdicts."""
    return tuple(f"{rule.name} ({rule.verdict})" for rule in rules if rule.verdict not in PROVED)


def notes(rules: Sequence[Rule | MergeRule]) -> tuple[str, ...]:
    """Return notes on rules proved at the sizes of matches that certificates do not cover, on corrections, and on comparisons."""
    admissions = {rule.name: rule.admits for rule in rules if isinstance(rule.admits, Admission)}
    proved = [f"{name} {admission.proved_here}" for name, admission in admissions.items() if admission.proved_here]
    texts = [f"kinds of matches outside a certificate, proved at their own sizes: {', '.join(proved)}"] if proved else []
    corrections = {rule.name: rule.corrects for rule in rules if isinstance(rule, Rule) and isinstance(rule.corrects, Correction)}
    for name, correction in corrections.items():
        texts += [f"{name} is corrected, and proved as a whole: {where}" for where in correction.corrected]
    compared = {name: admission.compared for name, admission in admissions.items() if admission.tried}
    compared |= {name: correction.compared for name, correction in corrections.items()}
    compared["those of shipped rules"] = [
        comparison for admission in admissions.values() if not admission.tried for comparison in admission.compared
    ]
    for name, kinds in compared.items():
        if kinds:
            least = max(kinds, key=lambda each: (each.fraction, each.elements))
            texts.append(f"kinds of matches compared on random operands: {name} {len(kinds)}; of the one with least certainty {least}")
    return tuple(texts)


FEW_POSITIONS, MANY_POSITIONS = 10, 20
"""Number of positions at which a mutant is compared with an operator, before and after mutants with little agreement are dropped."""


def agreement_with(original: Node) -> Callable[[Node], float]:
    """Return a function that returns the share of sampled positions at which a program agrees with an operator."""
    from verify.disagreement import agreement

    share = agreement(fragment_expression(original), FEW_POSITIONS, MANY_POSITIONS)
    return lambda program: share(fragment_expression(program))


def boxes_between(original: Node, program: Node) -> tuple[Box, ...] | None:
    """Return disjoint boxes outside of which a program is proved equal to an operator, or None if that is not decided."""
    from verify.disagreement import LITTLE_WORK, disagreement

    difference = disagreement(fragment_expression(original), fragment_expression(program), LITTLE_WORK)
    return None if difference is None else difference.boxes


PARTIAL = partial_rules(agreement_with, boxes_between)
"""Rules that are added to the derivation rules on request."""


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
    files: Sequence[Path], skip: Sequence[str], *, allow: Allow, unsafe: bool, tell: Tell = lambda text: None,
    gate: Gate | None = None,
) -> tuple[Rule | MergeRule, ...]:  # fmt: skip
    """Return the rules to saturate with, each with its verdict. ``tell`` gets the names of rules being proved; ``gate`` judges matches."""
    rules, where = gather(files)
    names = [rule.name for rule in (*rules, *DERIVATIONS, *PARTIAL)]
    for name in skip:
        if name not in names:
            close = difflib.get_close_matches(name, names, n=3, cutoff=0.4)
            raise RuleError(
                f"--skip-rule {name}: there is no such rule" + (f"; did you mean {' or '.join(close)}?" if close else ""),
                fix="python -m egraph.optimize --list-rules shows all names",
            )
    chosen = [rule for rule in rules if rule.name not in skip and rule.rounding in ALLOWED[allow]]
    return admitted(chosen, unsafe=unsafe, where=where, tell=tell, gate=gate)


def choose_derivations(
    skip: Sequence[str], *, allow: Allow, enabled: bool = True, partial: bool = False
) -> tuple[AnyRule, ...]:  # fmt: skip
    """Return the derivation rules to use; the names in ``skip`` are known to exist."""
    offered = (*DERIVATIONS, *(PARTIAL if partial else ())) if enabled else ()
    return tuple(rule for rule in offered if rule.name not in skip and rule.rounding in ALLOWED[allow])


def list_rules(files: Sequence[Path]) -> str:
    """Return one line per rule: name, verdict, rounding, equation; derivation rules are last."""
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
