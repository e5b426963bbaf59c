"""Prove the rules of a file: ``python -m verify my_rules.py``."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # heavy, and --help does without
    from egraph.rule import MergeRule, Rule
    from verify.proof import Proof

EXAMPLES = """examples:
  python -m verify my_rules.py                        a line a rule, and what is wrong with those that are not proved
  python -m verify my_rules.py --rule my_rule --json  one rule, as one JSON object
  python -m verify --shipped                          the shipped rules, from their certificates where these are current
  python -m verify --shipped --no-cache --json        the shipped rules, proved from scratch
  python -m verify --shipped --write                  the same as `make prove`: what changed is proved, the file written

verdicts: proved (all sizes; ranks and attributes are named), proved for these sizes, tested only, refuted (with a
smallest counterexample, as a program that needs numpy alone), unknown (with the open obligation and a guard that helps)

exit codes: 0 every rule is proved (for all sizes, or for these), 1 some rule is not, 2 usage, or the file cannot be used
"""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m verify",
        description="Prove rewrite rules for all sizes; test them on random shapes; show what is wrong with them.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("rules", type=Path, nargs="?", help="a Python file that ends in RULES = (my_rule, ...)")
    parser.add_argument("--shipped", action="store_true", help="prove the rules that ship")
    parser.add_argument("--rule", action="append", default=[], metavar="NAME", help="only this rule; repeatable")
    parser.add_argument("--no-cache", action="store_true", help="prove everything anew, whatever certificates there are")
    parser.add_argument("--write", action="store_true", help="write the certificates of the shipped rules")
    parser.add_argument("--seconds", type=float, default=60.0, metavar="S", help="processor time for one shipped rule (default: 60)")
    parser.add_argument("--jobs", type=int, default=0, metavar="N", help="processes that prove shipped rules (default: all usable cores)")
    parser.add_argument("--no-suggestions", action="store_true", help="do not look for guards that would make a rule provable")
    parser.add_argument("--cases", type=int, default=64, help="random instances to compare of each rule (default: 64)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random draws (default: 0)")
    parser.add_argument("--json", action="store_true", help="print one JSON object on standard output")
    return parser


def chosen(arguments: argparse.Namespace) -> tuple[Rule | MergeRule, ...]:
    """Return the rules that the command line asks for; raises RuleError where there are none."""
    from egraph.errors import RuleError
    from egraph.rule_file import load_rules

    if arguments.shipped == (arguments.rules is not None):
        raise RuleError("no rules were given", fix="python -m verify my_rules.py, or --shipped")
    if arguments.shipped:
        from egraph.rules import RULES as rules
    else:
        rules = load_rules(arguments.rules)
    names = [rule.name for rule in rules]
    for name in arguments.rule:
        if name not in names:
            raise RuleError(f"--rule {name}: there is no such rule", fix=f"give one of: {', '.join(names[:20])}")
    return tuple(rule for rule in rules if not arguments.rule or rule.name in arguments.rule)


def proofs(rules: Sequence[Rule | MergeRule], arguments: argparse.Namespace) -> Iterator[Proof]:
    """Yield the proof of every rule, in order: from its certificate, if that is current and says that it is proved, or made now."""
    from verify.certificates import Certificate, keep, kept, shipped
    from verify.fingerprint import rule_key, verifier_key

    known: dict[str, Certificate] = {}
    if not arguments.no_cache:
        certificates = shipped()
        for rule in rules:
            found = certificates.current(rule) if certificates.verifier == verifier_key() else None
            found = found or kept(rule)
            if found and found.is_proved:
                known[rule.name] = found
    made = _made([rule for rule in rules if rule.name not in known], arguments)
    for rule in rules:
        if rule.name in known:
            yield known[rule.name].to_proof(rule)
            continue
        proof = next(made)
        if not arguments.shipped:
            keep(Certificate.of(proof, rule_key(rule)))
        yield proof if arguments.no_suggestions or arguments.shipped else with_suggestion(rule, proof)


def with_suggestion(rule: Rule | MergeRule, proof: Proof) -> Proof:
    """Add a guard that would make the rule provable, where one is found."""
    from egraph.rule import Rule as OneRule

    may_help = proof.verdict in ("refuted", "unknown") and proof.failure in ("", "difference", "missing guard")
    if not may_help or not isinstance(rule, OneRule):
        return proof
    from verify.suggest import suggestion

    return replace(proof, suggestion=suggestion(rule))


def _made(rules: Sequence[Rule | MergeRule], arguments: argparse.Namespace) -> Iterator[Proof]:
    from verify.prove import Effort, prove

    effort = Effort(tests=arguments.cases, tries=100 * arguments.cases, seed=arguments.seed)
    jobs = arguments.jobs or len(os.sched_getaffinity(0))
    if not arguments.shipped:
        yield from (prove(rule, effort) for rule in rules)
        return
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    from verify.shipped import prove_shipped

    with ProcessPoolExecutor(max(1, min(jobs, len(rules))), get_context("spawn")) as pool:
        yield from pool.map(prove_shipped, [rule.name for rule in rules], [effort] * len(rules), [arguments.seconds] * len(rules))


def write_certificates(rules: Sequence[Rule | MergeRule], found: Sequence[Proof]) -> None:
    """Write the file of certificates beside the shipped rules."""
    from verify.certificates import Certificate, format_certificates, place_of_shipped
    from verify.fingerprint import rule_key

    made = [Certificate.of(proof, rule_key(rule)) for rule, proof in zip(rules, found, strict=True)]
    place_of_shipped().write_text(format_certificates(made), encoding="utf-8")


def line(proof: Proof, widths: tuple[int, int]) -> str:
    """Return ``matmul_associative   proved for all sizes   11 ms   also tested on 64 shapes, exact in F_p``."""
    return f"{proof.rule:{widths[0]}}   {proof.told:{widths[1]}}   {proof.duration:>6}   {proof.tests}"


def main() -> int:
    """Print a line a rule; return 1 when one is not proved, 2 when the file cannot be used."""
    arguments = build_parser().parse_args()
    from egraph.errors import EinsatError

    try:
        rules = chosen(arguments)
        found: list[Proof] = []
        widths = max((len(rule.name) for rule in rules), default=0), len("proved for all sizes")
        for proof in proofs(rules, arguments):
            found.append(proof)
            if not arguments.json:
                print(line(proof, widths), flush=True)
                for text in proof.explanation():
                    print(f"    {text}".rstrip())
    except EinsatError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 0
    if arguments.write and arguments.shipped and not arguments.rule:
        write_certificates(rules, found)
    proved = sum(proof.is_proved for proof in found)
    if arguments.json:
        counts = {"rules_total": len(found), "proved": proved, "seconds": round(sum(proof.seconds for proof in found), 3)}
        print(json.dumps({**counts, "rules": [proof.to_json() for proof in found]}))
    elif len(found) > 1:
        print(summary(found))
    return 0 if proved == len(found) else 1


def summary(found: Sequence[Proof]) -> str:
    """Return how many rules are proved, and for how many of them each application is, since there is no proof for all sizes."""
    at_sizes = sum(proof.verdict == "proved for these sizes" for proof in found)
    told = f", {at_sizes} of them application by application" if at_sizes else ""
    proved, seconds = sum(proof.is_proved for proof in found), sum(proof.seconds for proof in found)
    return f"{proved} of {len(found)} rules are proved{told}, {seconds:.1f} s"


if __name__ == "__main__":
    sys.exit(main())
