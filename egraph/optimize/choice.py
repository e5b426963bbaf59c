"""Choose the rules of a run: the shipped ones and the user's, without the skipped and the disallowed."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from egraph.errors import RuleError
from egraph.optimize.options import Allow
from egraph.rule import MergeRule, Rule
from egraph.rule_file import load_rules

ALLOWED = {
    "exact": ("exact",),
    "reassociate": ("exact", "reassociates"),
    "finite": ("exact", "reassociates", "assumes finite"),
}
SAFE_VERDICTS = ("proved", "proved for these sizes", "tested only")


def judged(rule: Rule | MergeRule, path: Path, *, unsafe: bool) -> Rule | MergeRule:
    """Return a user's rule with the verdict of its random test; a rule that fails is an error unless unsafe rules are allowed."""
    from verify.random_testing import check_rule

    result = check_rule(rule)
    if not result.passed and not unsafe:
        fix = "correct the rule, or use it all the same with --unsafe-rules"
        raise RuleError(f"a rule did not pass its random test\n{result}", where=str(path), fix=fix)
    return replace(rule, verdict="tested only" if result.passed else "refuted" if result.failures else "unknown")


def all_rules(files: Sequence[Path], *, unsafe: bool) -> tuple[Rule | MergeRule, ...]:
    """Return the shipped rules and those of the files, tested; names must be unique."""
    from egraph.rules import RULES

    rules: dict[str, Rule | MergeRule] = {rule.name: rule for rule in RULES}
    for path in files:
        for rule in load_rules(path):
            if rule.name in rules:
                raise RuleError(f"two rules are called {rule.name}", where=str(path), fix="rename one of them")
            rules[rule.name] = judged(rule, path, unsafe=unsafe)
    return tuple(rules.values())


def choose_rules(files: Sequence[Path], skip: Sequence[str], *, allow: Allow, unsafe: bool) -> tuple[Rule | MergeRule, ...]:
    """Return the rules to saturate with."""
    rules = all_rules(files, unsafe=unsafe)
    names = [rule.name for rule in rules]
    for name in skip:
        if name not in names:
            close = difflib.get_close_matches(name, names, n=3, cutoff=0.4)
            raise RuleError(
                f"--skip-rule {name}: there is no such rule" + (f"; did you mean {' or '.join(close)}?" if close else ""),
                fix="python -m egraph.optimize --list-rules shows all names",
            )
    return tuple(
        rule for rule in rules if rule.name not in skip and rule.rounding in ALLOWED[allow] and (unsafe or rule.verdict in SAFE_VERDICTS)
    )


def list_rules(files: Sequence[Path]) -> str:
    """Return one line a rule: name, verdict, rounding, equation."""
    rows = [(rule.name, rule.verdict, rule.rounding, rule.text.splitlines()[0]) for rule in all_rules(files, unsafe=True)]
    widths = [max([len(row[column]) for row in rows], default=0) for column in range(3)]
    lines = [f"{name:{widths[0]}}  {verdict:{widths[1]}}  {rounding:{widths[2]}}  {text}" for name, verdict, rounding, text in rows]
    return "\n".join([*lines, f"{len(rows)} rules"])
