"""Write docs/proofs.md: what is proved of every rule that ships, by family, from the certificates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from egraph.rule import MergeRule, Rule
from egraph.rules import FAMILIES
from verify.certificates import Certificates, shipped

HEAD = """# Proofs

What is proved of every rule that ships. Made by `make docs` from `egraph/rules/certificates.json`, which `make prove` writes.

*proved*: for all sizes, at the ranks and for the attributes that the scope names; elsewhere the optimiser proves a single application at
its own sizes, or does not use the rule. *proved for these sizes*: there is no proof for all sizes yet, and every application is proved at
its own. *Paths*: symbolic cases proved. *Tests*: random instances compared beside the proof, and how many of them exactly, in the integers
modulo 2^31 - 1. *Time*: of the processor. *Laws*: what a proof uses beyond arithmetic on real numbers.
"""


def table(rules: Sequence[Rule | MergeRule], certificates: Certificates) -> str:
    """Return a Markdown table of what is proved of rules."""
    lines = ["| rule | verdict | scope | paths | tests | time | laws |", "|---|---|---|---|---|---|---|"]
    for each in rules:
        found = certificates.by_name.get(each.name)
        if found is None:
            lines.append(f"| `{each.name}` | not yet | | | | | |")
            continue
        tests = f"{found.tests}" + (f", {found.exact_tests} exact" if found.exact_tests else "")
        time = f"{1e3 * found.seconds:.0f} ms" if found.seconds < 1 else f"{found.seconds:.1f} s"
        told = (found.scope or found.reason.splitlines()[0] if found.reason or found.scope else "").replace("|", "\\|")
        lines.append(f"| `{each.name}` | {found.verdict} | {told} | {found.paths} | {tests} | {time} | {', '.join(found.facts)} |")
    return "\n".join(lines)


def document() -> str:
    """Return docs/proofs.md."""
    certificates = shipped()
    counts = Counter(each.verdict for each in certificates.by_name.values())
    told = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items(), key=lambda item: -item[1])) or "nothing yet"
    sections = [f"## {family} ({len(rules)})\n\n{table(rules, certificates)}\n" for family, rules in FAMILIES.items()]
    return "\n".join([HEAD, f"{sum(map(len, FAMILIES.values()))} rules: {told}.\n", *sections])
