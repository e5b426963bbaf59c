"""Write docs/proofs.md: what is proved of every shipped rule, by family, from the certificates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from bench.corpora.counterparts import SYSTEMS, same_rules
from egraph.rule import MergeRule, Rule
from egraph.rules import FAMILIES
from verify.certificates import Certificates, shipped

MOST = 3
"""The most rules of one system that are named beside one of ours."""

HEAD = """# Proofs

What is proved of every rule that ships. Made by `make docs` from `egraph/rules/certificates.json`, which `make prove` writes.

*proved*: for all sizes, at the ranks and for the attributes that the scope names; elsewhere the optimiser proves a single application at
its own sizes, or does not use the rule. *proved for these sizes*: there is no proof for all sizes yet, and every application is proved at
its own. *Paths*: symbolic cases proved. *Tests*: random instances compared beside the proof, and how many of them exactly, in the integers
modulo 2^31 - 1. *Time*: of the processor. *Laws*: what a proof uses beyond arithmetic on real numbers.

*TASO*, *TENSAT*, *TensorRight*: the rule there that says the same, found by comparing the two as graphs up to the names of operands,
without attributes; ours may ask for more (as of two false substitutions of TASO, 99 and 130, which merge grouped convolutions of any
size) or hold for more. `-`: none was found. For rules that merge several products or convolutions none was looked for, since they have
several results: TASO and TENSAT state them for two at a time, as pairs of patterns (two products or two convolutions of one operand; for
grouped convolutions these pairs are false). TASO and TENSAT state no law of subtraction, division, exponentials, reductions, reshapes,
broadcasting or normalisation at all, and of TensorRight's 118 rules of XLA's simplifier these are the 39 proved ones among a third of
them. TASO's axioms and substitutions have the names of TENSAT's files, which run nearly all of them as rewrites. TASO's axioms are not
proved but tested on sizes 1 to 4, and its substitutions follow from them: all 743 in less than ten minutes with Z3 4.8.5; no times of
single rules are published, nor by TENSAT. TensorRight's authors publish a few times, most below one second, of proofs without random tests.
What this prover says of every entry of TASO's and TENSAT's files, and how long it takes, stands in `bench/results/corpora.md`.

## Rounding classes

A proof is over the real numbers; the class says what floating-point numbers may see of a rule.

| may differ | exact | reassociates | assumes finite |
|---|---|---|---|
| last bits | no | yes | yes |
| order of the summands within one operator, any number of them | yes | yes | yes |
| order of sums and products between operators, factors taken out of sums | no | yes | yes |
| zero's sign | no, but where an operator sums | yes | yes |
| overflow and underflow of what is computed on the way | no, but where an operator sums | yes | yes |
| a result that is infinite on one side and NaN on the other | no | yes | yes |
| a result that is finite on one side and infinite or NaN on the other, on operands (weights, too) that may be anything | no | no | yes |
| sums and products of int32 that wrap around before they are converted to float32 | no | no | yes |
| a finite result of the left side on finite operands without overflow | no | last bits | last bits |

A rule that states a class is held to it where it is proved (`verify.rounding`, `verify.special_values`). Laws that a proof uses beyond
arithmetic ask for a class. Random instances and every symbolic case, at sizes that satisfy it, are evaluated in IEEE float64 on operands
mixed with zeros of both signs, infinities, NaN, subnormal and huge numbers, constants that are one number also as these numbers where the
guard lets them pass; *exact* ones also in an algebra that does not associate. This refutes, it does not prove: that all special operands
agree rests on tests. The classes speak of the operators' meanings. Generated kernels keep NaN and infinities as these do, one by one;
of the library's, a fused Relu, Clip, Sigmoid, HardSigmoid or Exp may lose a NaN (a fused LeakyRelu, a mean, a sum or a
normalisation does not; Max, Min, their reductions, max pooling and softmax are generated): see
[the table of operators](core-operators.md#numbers-that-are-none). The runtime counts subnormal numbers as zero
unless it is asked to keep them.
"""


def table(rules: Sequence[Rule | MergeRule], certificates: Certificates) -> str:
    """Return a Markdown table of what is proved of rules."""
    heads = ("rule", "verdict", "scope", "paths", "tests", "time", "laws", *SYSTEMS)
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for each in rules:
        certificate = certificates.by_name.get(each.name)
        if certificate is None:
            lines.append(f"| `{each.name}` | not yet | | | | | | {others(each)} |")
            continue
        tests = f"{certificate.tests}" + (f", {certificate.exact_tests} exact" if certificate.exact_tests else "")
        time = f"{1e3 * certificate.seconds:.0f} ms" if certificate.seconds < 1 else f"{certificate.seconds:.1f} s"
        scope = certificate.scope or next(iter(certificate.reason.splitlines()), "")
        facts = ", ".join(certificate.facts)
        scope = scope.replace("|", "\\|")
        columns = (f"`{each.name}`", certificate.verdict, scope, str(certificate.paths), tests, time, facts, others(each))
        lines.append(f"| {' | '.join(columns)} |")
    return "\n".join(lines)


def others(rule: Rule | MergeRule) -> str:
    """Return the columns of the other systems."""
    same = same_rules(rule)
    columns = []
    for system in SYSTEMS:
        names = [str(rule) for rule in same if system in rule.systems]
        columns.append("; ".join(names[:MOST]) + (f"; {len(names) - MOST} more" if len(names) > MOST else "") or "-")
    return " | ".join(columns)


def document() -> str:
    """Return docs/proofs.md."""
    certificates = shipped()
    counts = Counter(each.verdict for each in certificates.by_name.values())
    counts_text = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items(), key=lambda item: -item[1])) or "nothing yet"
    sections = [f"## {family} ({len(rules)})\n\n{table(rules, certificates)}\n" for family, rules in FAMILIES.items()]
    return "\n".join([HEAD, f"{sum(map(len, FAMILIES.values()))} rules: {counts_text}.\n", *sections])
