"""Choose the rules of a run: the shipped ones and the user's, without the skipped and the disallowed."""

from __future__ import annotations

import difflib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

from egraph.errors import RuleError
from egraph.optimize.options import Allow
from egraph.rule import MergeRule, Rule

ALLOWED = {
    "exact": ("exact",),
    "reassociate": ("exact", "reassociates"),
    "finite": ("exact", "reassociates", "assumes finite"),
}
SAFE_VERDICTS = ("proved", "proved for these sizes", "tested only")


def load_rules(path: Path) -> tuple[Rule | MergeRule, ...]:
    """Import a Python file and return its ``RULES``."""
    if not path.is_file():
        raise RuleError(f"rule file {path} does not exist", fix="check the path given to --rules")
    spec = importlib.util.spec_from_file_location(f"einsat_rules_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise RuleError(f"rule file {path} is not a Python file", fix="give --rules a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # inspect.signature resolves annotations through it
    try:
        spec.loader.exec_module(module)
    except RuleError:
        raise
    except Exception as error:
        raise RuleError(f"rule file {path} raised {type(error).__name__}: {error}", where=str(path)) from error
    rules = getattr(module, "RULES", None)
    if not isinstance(rules, list | tuple) or not all(isinstance(rule, Rule | MergeRule) for rule in rules):
        raise RuleError(f"rule file {path} has no tuple RULES of rules", fix="end the file with RULES = (my_rule, ...)")
    return tuple(rules)


def all_rules(files: Sequence[Path]) -> tuple[Rule | MergeRule, ...]:
    """Return the shipped rules and those of the files; names must be unique."""
    from egraph.rules import RULES

    rules: dict[str, Rule | MergeRule] = {}
    for source, group in [("the shipped rules", RULES), *((str(path), load_rules(path)) for path in files)]:
        for rule in group:
            if rule.name in rules:
                raise RuleError(f"two rules are called {rule.name}", where=source, fix="rename one of them")
            rules[rule.name] = rule
    return tuple(rules.values())


def choose_rules(files: Sequence[Path], skip: Sequence[str], *, allow: Allow, unsafe: bool) -> tuple[Rule | MergeRule, ...]:
    """Return the rules to saturate with."""
    rules = all_rules(files)
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
    rows = [(rule.name, rule.verdict, rule.rounding, rule.text.splitlines()[0]) for rule in all_rules(files)]
    widths = [max([len(row[column]) for row in rows], default=0) for column in range(3)]
    lines = [f"{name:{widths[0]}}  {verdict:{widths[1]}}  {rounding:{widths[2]}}  {text}" for name, verdict, rounding, text in rows]
    return "\n".join([*lines, f"{len(rows)} rules"])
