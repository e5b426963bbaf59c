"""Choose the rules and derivations of a run: the shipped ones and the user's, without the skipped and the disallowed."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path

from egraph.derive.derivation import DerivationRule, GroupRule
from egraph.derive.registry import DERIVATIONS
from egraph.errors import RuleError
from egraph.optimize.gate import VALIDATED, Tell, admitted
from egraph.optimize.options import Allow
from egraph.optimize.partial import PARTIAL
from egraph.rewrite.file import load_rules
from egraph.rule import MergeRule, Rule

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
) -> tuple[DerivationRule | GroupRule, ...]:  # fmt: skip
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


def _derives(rule: DerivationRule | GroupRule) -> str:
    several = "several " if isinstance(rule, GroupRule) else ""
    return f"{'computes' if several else 'derives programs of'} {several}{', '.join(rule.operators)}{' by one' if several else ''}"
