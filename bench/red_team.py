"""Test the prover and the gate with rules that were made to fool them: ``python -m bench.red_team``.

No false rule may be called proved, and the gate may let in no match whose sides differ. A file's rule without a proof is refused as a
whole. Judged match by match, like a shipped rule without a current certificate, it may apply only where it is right.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from bench.machine import about, sentence
from egraph.errors import EinsatError, RuleError
from egraph.optimize.admission import admitted
from egraph.optimize.gate import Admission
from egraph.rewrite.file import read_rules
from egraph.rewrite.values import Refusal
from egraph.rule import MergeRule, Mismatch, Rule
from runtime.runner import KINDS, open_runner, parse_runner
from verify.certificates import Certificate, keep
from verify.comparison import compare_sides
from verify.fingerprint import rule_key
from verify.proof import Proof
from verify.prove import Effort, prove
from verify.random_testing import Instance, draws

EXAMPLES = """examples:
  python -m bench.red_team                       every file, a line a rule
  python -m bench.red_team --file slow           the rules of one file
  python -m bench.red_team --record              the table, in bench/results/red_team.md
  python -m bench.red_team --file slow --record  the rows of one file in that table anew

exit codes: 0 nothing that is false is called proved or let in, 1 something is
"""
ROOT = Path(__file__).parents[1]
FOLDER, RESULTS = ROOT / "tests/red_team", ROOT / "bench/results"
MATCHES = 6
"""Matches at which the gate is asked about a rule."""
TRIES = 100
"""Random draws for them."""
SECONDS_AT_THE_GATE = 20.0
"""Processor time after which the gate is asked about no further match of a rule."""
TRUE: dict[str, str] = {
    "slice_of_reverse": "n - 1 - k is the end that is left out: both sides are x[n-1], ..., x[n-k]",
    "conv_group": "(-x) * (-w) = x * w, whatever the groups: they stay what they are",
    "int64_branch": "a reshape to the sizes backwards and back is x, for every element type",
    "less_or_equal_constant": "its guard lets whole numbers in alone: floor(x) < 2 is x < 2",
    "max_pool_twice_padded": "it is `max_pool_of_max_pool`, which ships",
    "average_pool_as_conv": "at an infinite constant both sides are infinite or NaN, which its class does not tell apart",
    "r_max_plus": "at infinities both sides are infinite or NaN, which its class does not tell apart",
    "r_abs": "only what overflows or underflows on the way differs, which its class allows",
    "r_double_reciprocal": "only what overflows or underflows on the way differs, which its class allows",
    "softmax_log": "on the reals, as its own text says; where the softmax underflows the left side is not finite",
    "byte_zero_of_difference": "a NaN has no nearest byte: where x is not finite, the left side has no value",
    "infinite_number": "since a number that float32 holds, an infinity too, is asked for as it is",
    "nearly_one": "since 1 is asked for as it is", "nearly_one_amplified": "since 1 is asked for as it is",
}  # fmt: skip
"""Rules that are true although their text says that they are false, or nothing; with the reason."""
FALSE: dict[str, str] = {
    "merge_of_one_weight": "for a batched weight the right side is ill-typed: a guard is missing",
    "group_split": "from 300 channels on, as its own text says",
    "long_loop": "it states nothing, since its function never ends; \"unknown: time\" is what it deserves",
}  # fmt: skip
"""Rules that are not true everywhere although their text says that they are, or says nothing."""
_ABOVE = "false at rank 5, which its proof does not cover: such matches are proved one by one"
OUTSIDE: dict[str, str] = {"many_numbers": _ABOVE, "ranks_sizes_of_largest_rank": _ABOVE}
"""False rules that are proved where they are true; the scope says where that is."""


@dataclass(frozen=True)
class Judged:
    """A rule, whether it is true, what the prover says, and what the gate does."""

    file: str
    name: str
    true: bool
    verdict: str
    scope: str
    reason: str
    rounding: str
    seconds: float
    passes: bool = False
    """Whether the gate lets the rule in as a whole, as it judges rules of ``--rules FILE``."""
    matches: int = 0
    """Random matches at which the gate was asked; a rule that it refuses as a whole is judged at them without a certificate."""
    let_in: int = 0
    """The number of these that it let in."""
    differing: int = 0
    """The number of those let in whose sides differ on random operands."""

    @property
    def is_proved(self) -> bool:
        return self.verdict in ("proved", "proved for these sizes")

    @property
    def is_wrong(self) -> bool:
        return self.differing > 0 or (not self.true and self.name not in OUTSIDE and (self.is_proved or self.passes))

    @property
    def at_the_gate(self) -> str:
        return f"{'passes' if self.passes else 'refused'}, {self.let_in} of {self.matches}"


def files(names: Sequence[str]) -> list[Path]:
    """Return the files of rules; all of them if none is named."""
    return [FOLDER / f"{name}.py" for name in names] if names else sorted(FOLDER.glob("*.py"))


def judged(path: Path, seconds: float) -> list[Judged]:
    """Return the judgements of prover and gate on the rules of a file."""
    judgements = []
    for each in read_rules(path):
        start = time.process_time()
        if isinstance(each, Refusal):
            judgements.append(Judged(path.stem, each.name, each.name in TRUE, "refused", "", each.error.what, "", 0.0))
            continue
        true = (re.search(r"\bTRUE\b", each.text) is not None or each.name in TRUE) and each.name not in FALSE
        judgement = Judged(path.stem, each.name, true, "refused", "", "", each.rounding, 0.0)
        try:
            proof = prove(each, Effort(seconds=seconds))
        except EinsatError as error:
            judgements.append(replace(judgement, reason=error.what, seconds=time.process_time() - start))
            continue
        judgement = replace(judgement, verdict=str(proof.verdict), scope=proof.scope, reason=proof.brief_verdict)
        judgements.append(at_gate(replace(judgement, seconds=time.process_time() - start), each, proof, path))
    return judgements


def at_gate(judgement: Judged, rule: Rule | MergeRule, proof: Proof, path: Path) -> Judged:
    """Add the gate's decisions on a rule for which this proof was made."""
    keep(Certificate.of(proof, rule_key(rule)))
    try:
        (gated,) = admitted([rule], where={rule.name: path})
        passes = True
    except RuleError:
        gated, passes = replace(rule, admits=Admission(rule, covers=False, tried=True)), False
    matches = let_in = differing = 0
    start = time.process_time()
    for instance in islice(draws(rule, seed=1, tries=TRIES), MATCHES):
        if time.process_time() - start > SECONDS_AT_THE_GATE:
            break
        matches += 1
        if applies(gated, instance):
            let_in += 1
            differing += any(compare_sides(instance.left, instance.right, instance.numbers, seed).reason != "" for seed in (1, 2, 3))
    return replace(judgement, passes=passes, matches=matches, let_in=let_in, differing=differing)


def applies(rule: Rule | MergeRule, instance: Instance) -> bool:
    """Return whether the gate lets a match in."""
    try:
        rule.apply(instance.bindings) if isinstance(rule, MergeRule) else rule.apply(instance.bindings[0])
    except Mismatch:
        return False
    return True


def line(judgement: Judged) -> str:
    """Return the printed line of a rule."""
    mark = "WRONG" if judgement.is_wrong else "true" if judgement.true else "false"
    columns = f"{judgement.file}.{judgement.name:32} {mark:6} {judgement.verdict:24} {judgement.seconds:6.2f} s  {judgement.at_the_gate:19}"
    return f"{columns}  {judgement.scope or judgement.reason}"[:170]


Record = dict[str, dict[str, Any]]
"""By file: the machine and the command with which its rules were judged (``about``), and the judgements (``rules``)."""


def recorded() -> Record:
    """Return what bench/results/red_team.json holds."""
    path = RESULTS / "red_team.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def record(judgements: Sequence[Judged], command: str) -> None:
    """Replace the rows of the judged files, drop rows of files that no longer exist, and write the table."""
    existing = {path.stem for path in files(())}
    names = {each.file for each in judgements}
    made = {name: {"about": about(command), "rules": [asdict(each) for each in judgements if each.file == name]} for name in names}
    rows = {name: row for name, row in sorted((recorded() | made).items()) if name in existing}
    (RESULTS / "red_team.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    (RESULTS / "red_team.md").write_text(table(rows), encoding="utf-8")


def table(recorded_rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the page."""
    judgements = [Judged(**each) for row in recorded_rows.values() for each in row["rules"]]
    true, false = [each for each in judgements if each.true], [each for each in judgements if not each.true]
    proved, wrong = [each for each in true if each.is_proved], [each for each in judgements if each.is_wrong]
    rows = [
        f"| {each.file} | `{each.name}` | {str(each.true).lower()} | {each.verdict} | {_cell(each)} | {each.at_the_gate} | {each.rounding} "
        f"| {each.seconds:.2f} |" for each in judgements
    ]  # fmt: skip
    names = f" ({', '.join(each.name for each in wrong)})" if wrong else ""
    outside = [each.name for each in false if each.name in OUTSIDE and each.is_proved]
    within = f", {len(outside)} ({', '.join(outside)}) proved where it is true" if outside else ""
    made: dict[str, list[str]] = {}
    for name, row in recorded_rows.items():
        made.setdefault(sentence(row["about"]), []).append(name)
    sources = [text if len(made) == 1 else f"{', '.join(several)}: {text}" for text, several in made.items()]
    notes = [f"* `{name}`: {why}" for name, why in (*TRUE.items(), *FALSE.items(), *OUTSIDE.items()) if why]
    gate = (
        "*At the gate*: whether `--rules FILE` lets the rule in, without `--unsafe-rules`; then at how many of some random matches it "
        "applies. A rule that is refused is asked about as if it shipped without a certificate, each match proved at its own sizes. "
        f"Of {sum(each.matches for each in judgements)} matches {sum(each.let_in for each in judgements)} were let in; the sides of "
        f"{sum(each.differing for each in judgements)} of these differ on random operands. Seconds are of the processor, for the proof."
    )
    return "\n".join([
        "# Rules made to fool the prover", "", *sources, "",
        f"{len(false)} false rules: {len(wrong)} called proved or let in{names}{within}. {len(true)} true rules: {len(proved)} proved.", "",
        gate, "", "Where a rule's own text is mistaken about it:", "", *notes, "",
        "| file | rule | it is | verdict | scope, or why not | at the gate | rounding | seconds |",
        "|---|---|---|---|---|---|---|---|", *rows, "",
    ])  # fmt: skip


def _cell(judgement: Judged) -> str:
    return (judgement.scope or judgement.reason).replace("|", "/").replace("\n", " ")[:110]


def main() -> int:
    """Print one line per rule; return 1 if a false one is called proved or let in."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.red_team", epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Ask prover and gate about rules that were made to fool them: nothing that is false may be proved or let in.",
    )  # fmt: skip
    parser.add_argument("--file", action="append", default=[], metavar="NAME", help="a file of tests/red_team; repeatable")
    parser.add_argument("--seconds", type=float, default=30.0, metavar="S", help="processor time for one rule (default: 30)")
    parser.add_argument("--runner", type=parse_runner, default="processes", metavar="WHERE", help=f"what judges files: {KINDS}")
    parser.add_argument(
        "--record", action="store_true", help="write the rows of these files to bench/results/red_team.json and .md, file by file"
    )
    arguments = parser.parse_args()
    wrong = False
    paths = files(arguments.file)
    with open_runner(arguments.runner) as runner:
        for several in runner.run(judged, [(path, arguments.seconds) for path in paths]):
            for judgement in several:
                wrong = wrong or judgement.is_wrong
                print(line(judgement), flush=True)
            if arguments.record:
                record(several, f"python -m bench.red_team --seconds {arguments.seconds:g} --record")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
