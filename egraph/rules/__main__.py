"""Print the table of rules: ``python -m egraph.rules > docs/rules.md``."""

from __future__ import annotations

import sys

from egraph.rule import MergeRule, Rule
from egraph.rules import FAMILIES

HEAD = """# Rules

Every rule of the e-graph, by family. Made by `python -m egraph.rules > docs/rules.md`; a test holds it up to date.

*Rounding*: `exact` rules give the same bits on any data; `reassociates` rules may round differently, and keep what is finite finite;
`assumes finite` rules may differ where an operand is infinite or no number. [proofs.md](proofs.md) has the table of what each class
lets differ, and says what is proved of each rule.
"""


def table(rules: tuple[Rule | MergeRule, ...]) -> str:
    """Return a Markdown table of rules."""
    lines = ["| name | equation | rounding |", "|---|---|---|"]
    for each in rules:
        equation = each.text.splitlines()[0].replace("|", "\\|")
        lines.append(f"| `{each.name}` | {equation} | {each.rounding} |")
    return "\n".join(lines)


def document() -> str:
    """Return docs/rules.md."""
    count = sum(len(rules) for rules in FAMILIES.values())
    sections = [f"## {family} ({len(rules)})\n\n{table(rules)}\n" for family, rules in FAMILIES.items()]
    return "\n".join([HEAD, f"{count} rules.\n", *sections])


if __name__ == "__main__":
    sys.stdout.write(document())
