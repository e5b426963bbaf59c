"""Prove the rules of a file: ``python -m verify my_rules.py``."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from runtime.errors import ExecutionError
from runtime.runner import open_runner, parse_runner

if TYPE_CHECKING:  # slow imports that --help does not need
    from egraph.rewrite.file import Found
    from egraph.rewrite.values import Refusal
    from egraph.rule import MergeRule, Rule
    from verify.proof import Proof
    from verify.prove import Effort

EXAMPLES = """examples:
  python -m verify my_rules.py                        one line per rule, and why a rule is not proved
  python -m verify my_rules.py --rule my_rule --json  one rule, as one JSON object
  python -m verify my_rules.py --jsonl --seconds 10   one JSON line per rule, with ten seconds of processor time each
  python -m verify my_rules.py --ranks 0..6           variables of up to six axes, however long that takes
  python -m verify --shipped                          the shipped rules, from their certificates if these are current
  python -m verify --shipped --no-cache --json        the shipped rules, proved from scratch
  python -m verify --shipped --no-cache --runner ray  the same, on the cores of a Ray cluster
  python -m verify --shipped --write                  the same as `make prove`: prove changed rules, write the file

verdicts: proved (all sizes; ranks and attributes are named), proved for these sizes, tested only, refuted (with a
smallest counterexample, as a program that needs only numpy), unknown (with the open obligation and a guard that helps; or
the time was over; or the rule is not written in the language of docs/writing-rules.md)

exit codes: 0 every rule is proved (for all sizes, or for these), 1 some rule is not, 2 usage error, or the file cannot be used
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
    parser.add_argument("--no-cache", action="store_true", help="prove everything again, without using certificates")
    parser.add_argument("--write", action="store_true", help="write the certificates of the shipped rules")
    parser.add_argument(
        "--seconds", type=float, metavar="S", help="processor time for one rule (default: 60; for shipped rules, an amount of work)"
    )
    parser.add_argument("--ranks", type=ranks_from, metavar="A..B", help="ranks of the variables (default: as many as there is time for)")
    parser.add_argument(
        "--runner", type=parse_runner, default="processes", metavar="WHERE",
        help="what proves shipped rules: processes, processes:N, ray or ray:ADDRESS (default: as many processes as there are usable cores)",
    )  # fmt: skip
    parser.add_argument("--no-suggestions", action="store_true", help="do not look for guards that would make a rule provable")
    parser.add_argument("--cases", type=int, default=64, help="random instances on which to test each rule (default: 64)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random draws (default: 0)")
    parser.add_argument("--json", action="store_true", help="print one JSON object on standard output")
    parser.add_argument("--jsonl", action="store_true", help="print one JSON object per line for each rule, as soon as it is decided")
    return parser


def ranks_from(text: str) -> tuple[int, ...]:
    """Return ``0..6`` or ``3`` as the ranks that it names."""
    first, _, last = text.partition("..")
    try:
        ranks = tuple(range(int(first), int(last or first) + 1))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no range of ranks: write 0..6") from error
    if not ranks or ranks[0] < 0 or ranks[-1] > MOST_AXES:
        raise argparse.ArgumentTypeError(f"ranks are 0 to {MOST_AXES}, got {text!r}")
    return ranks


SECONDS = 60.0
"""Processor time in seconds for one rule of a file."""
MOST_AXES = 8
"""Most axes of a variable; more have too many permutations to enumerate."""


def chosen(arguments: argparse.Namespace) -> tuple[Found, ...]:
    """Return the selected rules, with rules outside the language as refusals; raises RuleError if there are none."""
    from egraph.errors import RuleError
    from egraph.rewrite.file import read_rules

    if arguments.shipped == (arguments.rules is not None):
        raise RuleError("no rules were given", fix="python -m verify my_rules.py, or --shipped")
    rules: tuple[Found, ...]
    if arguments.shipped:
        from egraph.rules import RULES

        rules = RULES
    else:
        rules = read_rules(arguments.rules)
    names = [rule.name for rule in rules]
    for name in arguments.rule:
        if name not in names:
            raise RuleError(f"--rule {name}: there is no such rule", fix=f"give one of: {', '.join(names[:20])}")
    return tuple(rule for rule in rules if not arguments.rule or rule.name in arguments.rule)


def proofs(entries: Sequence[Found], arguments: argparse.Namespace) -> Iterator[Proof]:
    """Yield the proof of every rule, in order: from its certificate if that is current and proved, otherwise made now."""
    from egraph.rewrite.values import Refusal
    from verify.certificates import Certificate, keep, kept, shipped
    from verify.fingerprint import rule_key, verifier_key

    certified: dict[str, Certificate] = {}
    rules = [each for each in entries if not isinstance(each, Refusal)]
    if not arguments.no_cache and arguments.ranks is None:
        certificates = shipped()
        for rule in rules:
            certificate = certificates.current(rule) if certificates.verifier == verifier_key() else None
            certificate = certificate or kept(rule)
            if certificate and certificate.is_proved:
                certified[rule.name] = certificate
    made = _made([rule for rule in rules if rule.name not in certified], arguments)
    for each in entries:
        if isinstance(each, Refusal):
            yield refused(each)
            continue
        rule = each
        if rule.name in certified:
            proof = certified[rule.name].to_proof(rule)
            yield with_suggestion(rule, proof, arguments.seconds) if _may_differ(rule) and not arguments.no_suggestions else proof
            continue
        proof = next(made)
        if not arguments.shipped and arguments.ranks is None:
            keep(Certificate.of(proof, rule_key(rule)))
        yield proof if arguments.no_suggestions or arguments.shipped else with_suggestion(rule, proof, arguments.seconds)


def refused(refusal: Refusal) -> Proof:
    """Return the verdict on a rule whose text is not in the language."""
    from verify.proof import Proof

    error = refusal.error
    reason = "; ".join(part for part in (f"{error.what} ({error.where})" if error.where else error.what, error.fix) if part)
    return Proof(refusal.name, "unknown", "", 0.0, 0, 0, 0, "exact", failure="language", reason=f"not in the language: {reason}")


def _may_differ(rule: Rule | MergeRule) -> bool:
    """Return whether the sides of a rule that is proved may differ somewhere."""
    from egraph.rule import Rule as OneRule

    return isinstance(rule, OneRule) and rule.corrected


def with_suggestion(rule: Rule | MergeRule, proof: Proof, seconds: float) -> Proof:
    """Add where the sides of a rule differ, and a guard that makes it provable, if one is found in time."""
    from egraph.rewrite.clock import OutOfTime, within
    from egraph.rule import Rule as OneRule

    may_help = proof.verdict in ("refuted", "unknown") and proof.failure in ("", "difference", "missing guard")
    try:
        with within(seconds):
            if proof.verdict == "refuted" or _may_differ(rule):
                from verify.suggest import difference_of

                where, boxes = difference_of(rule)
                proof = replace(proof, where=where or proof.where, boxes=boxes)
            if may_help and isinstance(rule, OneRule):
                from verify.suggest import suggestion

                proof = replace(proof, suggestion=suggestion(rule))
    except OutOfTime:
        pass
    return proof


def _made(rules: Sequence[Rule | MergeRule], arguments: argparse.Namespace) -> Iterator[Proof]:
    from verify.prove import Effort

    tests, seconds = arguments.cases, arguments.seconds
    effort = Effort(tests=tests, tries=100 * tests, seed=arguments.seed, ranks=arguments.ranks, seconds=seconds)
    if not arguments.shipped:
        yield from (_proved(rule, effort, position, len(rules)) for position, rule in enumerate(rules))
        return
    from verify.certificates import Certificate, keep, prove_shipped
    from verify.families import families
    from verify.fingerprint import rule_key

    made: dict[str, Proof] = {}
    with open_runner(arguments.runner) as runner:
        jobs = runner.run(prove_shipped, [([rule.name for rule in family], effort) for family in families(rules)])
        for rule in rules:
            while rule.name not in made:
                made |= {proof.rule: proof for proof in next(jobs)}
            keep(Certificate.of(made[rule.name], rule_key(rule)))  # another machine of a cluster stores its own
            yield made[rule.name]


def _proved(rule: Rule | MergeRule, effort: Effort, position: int, count: int) -> Proof:
    """Return the proof of a rule; report progress on standard error if it is a terminal."""
    from egraph.errors import RuleError
    from egraph.rewrite.values import Refusal
    from egraph.rule import Rule as OneRule
    from verify.corrected import prove_corrected
    from verify.prove import prove

    shown = sys.stderr.isatty()
    if shown:
        print(f"\r\x1b[K{position + 1} of {count}: {rule.name}", end="", file=sys.stderr, flush=True)
    try:
        return prove_corrected(rule, effort) if isinstance(rule, OneRule) and rule.corrected else prove(rule, effort)
    except RuleError as error:
        return refused(Refusal(error, rule.name))
    finally:
        if shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def write_certificates(rules: Sequence[Rule | MergeRule], proofs: Sequence[Proof]) -> None:
    """Write the file of certificates beside the shipped rules."""
    from verify.certificates import Certificate, format_certificates, shipped_file
    from verify.fingerprint import rule_key

    made = [Certificate.of(proof, rule_key(rule)) for rule, proof in zip(rules, proofs, strict=True)]
    shipped_file().write_text(format_certificates(made), encoding="utf-8")


def line(proof: Proof, widths: tuple[int, int]) -> str:
    """Return ``matmul_associative   proved for all sizes   11 ms   also tested on 64 shapes, exact in F_p``."""
    return f"{proof.rule:{widths[0]}}   {proof.verdict_text:{widths[1]}}   {proof.duration:>6}   {proof.tests}"


def correctable(proof: Proof) -> tuple[str, ...]:
    """Return a hint that a rule that holds in part can still be used, () if it does not apply."""
    return ("@rule(corrected=True) uses it, with the left side's operators there",) if proof.where and not proof.is_proved else ()


def main() -> int:
    """Print one line per rule; return 1 if one is not proved, 2 if the file cannot be used."""
    arguments = build_parser().parse_args()
    if arguments.seconds is None:
        arguments.seconds = math.inf if arguments.shipped else SECONDS
    from egraph.errors import EinsatError

    try:
        rules = chosen(arguments)
        judged: list[Proof] = []
        widths = max((len(rule.name) for rule in rules), default=0), len("proved for all sizes")
        for proof in proofs(rules, arguments):
            judged.append(proof)
            if arguments.jsonl:
                print(json.dumps(proof.to_json()), flush=True)
            elif not arguments.json:
                print(line(proof, widths), flush=True)
                for text in (*proof.explanation(), *correctable(proof)):
                    print(f"    {text}".rstrip())
    except (EinsatError, ExecutionError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 0
    if arguments.write and arguments.shipped and not arguments.rule:
        from egraph.rules import RULES

        write_certificates(RULES, judged)
    proved = sum(proof.is_proved for proof in judged)
    if arguments.json:
        counts = {"rules_total": len(judged), "proved": proved, "seconds": round(sum(proof.seconds for proof in judged), 3)}
        print(json.dumps({**counts, "rules": [proof.to_json() for proof in judged]}))
    elif len(judged) > 1 and not arguments.jsonl:
        print(summary(judged))
    return 0 if proved == len(judged) else 1


def summary(proofs: Sequence[Proof]) -> str:
    """Return how many rules are proved, and how many of them only at the sizes of each application."""
    at_sizes = sum(proof.verdict == "proved for these sizes" for proof in proofs)
    at_sizes_text = f", {at_sizes} of them application by application" if at_sizes else ""
    proved, seconds = sum(proof.is_proved for proof in proofs), sum(proof.seconds for proof in proofs)
    return f"{proved} of {len(proofs)} rules are proved{at_sizes_text}, {seconds:.1f} s"


if __name__ == "__main__":
    sys.exit(main())
