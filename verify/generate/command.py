"""Run one enumeration from the command line: progress on standard error, rules and summary on standard output."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from egraph.errors import EinsatError
from egraph.rewrite.file import load_rules
from egraph.rule import MergeRule, Rule
from verify.certificates import Certificate, certify, format_certificates
from verify.fingerprint import rule_key
from verify.generate.run import Generated, Settings, generate
from verify.generate.source import module_text
from verify.proof import Proof
from verify.prove import Effort, prove

EFFORT = Effort(tests=16, tries=2000, open_cases=1)
"""The effort for most rules. Many variants of a rule with fewer guards are tried, and the first open case rejects a variant."""
BIT_BY_BIT = Effort(tests=96, tries=6000, open_cases=1)
"""The effort for rules that have to keep every bit. Infinities and NaN are tested too, and only some draws reveal a difference."""


class _Progress:
    """Report progress on standard error, at most once per second; on a terminal, on a single line."""

    def __init__(self, *, quiet: bool) -> None:
        self.quiet, self.last = quiet, 0.0

    def __call__(self, text: str) -> None:
        if self.quiet or time.monotonic() - self.last < 1:
            return
        self.last = time.monotonic()
        print(f"\r\x1b[2K{text}" if sys.stderr.isatty() else text, end="" if sys.stderr.isatty() else "\n", file=sys.stderr, flush=True)

    def close(self) -> None:
        if not self.quiet and self.last and sys.stderr.isatty():
            print("\r\x1b[2K", end="", file=sys.stderr)


def run(chosen: argparse.Namespace) -> int:
    """Generate rules according to the command line; return the exit code."""
    say = _Progress(quiet=chosen.quiet)
    before = signal.signal(signal.SIGTERM, _terminated)
    try:
        operators = tuple(name.strip() for name in chosen.ops.split(",") if name.strip())
        settings = Settings(operators, chosen.depth, chosen.variables, chosen.terms, chosen.budget)
        generated = generate(settings, proved, say)
        say.close()
        text = _file(generated, operators)
        if chosen.output:
            _write(chosen.output, text)
            rules = load_rules(chosen.output)
            _write(certificates_beside(chosen.output), _certificates(rules, generated))
            _file_certificates(rules, generated)
        if chosen.json:
            print(json.dumps(_report(generated, chosen.output), indent=2))
        else:
            print(*([text] if not chosen.output else []), *_summary(generated, chosen.output), sep="\n")
    except EinsatError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # while writing
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)
    return 130 if generated.stop_reason == "interrupted" else 0


def _terminated(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def certificates_beside(path: Path) -> Path:
    """Return the path of a generated file's certificates: ``mine.certificates.json`` for ``mine.py``."""
    return path.with_suffix(".certificates.json")


def _certificates(rules: Sequence[Rule | MergeRule], generated: Generated[Proof]) -> str:
    """Return the proofs as certificates of the rules in the written file."""
    return format_certificates(Certificate.of(generated.outcomes[rule.name], rule_key(rule)) for rule in rules)


def _file_certificates(rules: Sequence[Rule | MergeRule], generated: Generated[Proof]) -> None:
    """Store the proofs with the certificates of the user's rules, so that the optimiser does not prove them again."""
    certify(rules, lambda rule: generated.outcomes[rule.name])


def _command(generated: Generated[Proof]) -> str:
    settings = generated.settings
    return f"python -m verify.generate --ops {','.join(settings.operators)} --depth {settings.depth} --variables {settings.variables}"


def _file(generated: Generated[Proof], operators: Sequence[str]) -> str:
    title = f"{', '.join(operators)}, up to {generated.settings.depth} operators a side."
    texts = [f"# {accepted.outcome.verdict_text}\n{accepted.text}" for accepted in generated.accepted]
    return module_text(texts, [rule.name for rule in generated.rules], title, _command(generated))


def _write(path: Path, text: str) -> None:
    """Write a file atomically."""
    beside = path.with_name(path.name + ".part")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


def _summary(generated: Generated[Proof], output: Path | None) -> list[str]:
    destination = f" in {output}" if output else ""
    lines = [
        f"{generated.terms} terms under {generated.contexts} typings, {generated.candidates} equations that agree on the test data",
        f"  {generated.instances} instances of others, {generated.derived} shown by others, {len(generated.open)} not proved",
        f"  {len(generated.equations)} equations remain: {len(generated.rules)} rules{destination} ({generated.stop_reason})",
    ]
    return lines + [f"  not proved: {draft.left} = {draft.right}" for draft in generated.open]


def _report(generated: Generated[Proof], output: Path | None) -> dict[str, Any]:
    settings = generated.settings
    return {
        "operators": list(settings.operators), "depth": settings.depth, "variables": settings.variables, "typings": generated.contexts,
        "terms": generated.terms, "equations": generated.candidates, "instances": generated.instances, "shown_by_others": generated.derived,
        "rules": [{"name": a.rule.name, "equation": a.rule.text, "guards": [g.condition for g in a.guards], "rounding": a.rule.rounding,
                   "verdict": a.outcome.verdict_text} for a in generated.accepted],
        "not_proved": [f"{draft.left} = {draft.right}" for draft in generated.open], "stop_reason": generated.stop_reason,
        "seconds": round(generated.seconds, 2), "file": str(output) if output else None,
    }  # fmt: skip


def proved(rule: Rule) -> Proof | None:
    """Return the proof of a rule that is proved for all sizes, else None."""
    proof = prove(rule, BIT_BY_BIT if rule.rounding == "exact" else EFFORT)
    return proof if proof.verdict == "proved" else None
