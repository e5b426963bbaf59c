"""Ask the prover about rules that were made to fool it: ``python -m bench.red_team``. Nothing that is false may be called proved."""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from bench.machine import about, sentence
from egraph.errors import EinsatError
from egraph.rewrite.file import read_rules
from egraph.rewrite.values import Refusal
from verify.prove import Effort, prove

EXAMPLES = """examples:
  python -m bench.red_team                       every file, a line a rule
  python -m bench.red_team --file slow           the rules of one file
  python -m bench.red_team --record              the table, in bench/results/red_team.md

exit codes: 0 no rule that is false is called proved, 1 some is
"""
ROOT = Path(__file__).parents[1]
FOLDER, RESULTS = ROOT / "tests/red_team", ROOT / "bench/results/red_team.md"
TRUE: dict[str, str] = {
    "slice_of_reverse": "n - 1 - k is the end that is left out: both sides are x[n-1], ..., x[n-k]",
    "conv_group": "(-x) * (-w) = x * w, whatever the groups: they stay what they are",
    "int64_branch": "a reshape to the sizes backwards and back is x, for every element type",
    "max_pool_twice_padded": "it is `max_pool_of_max_pool`, which ships",
    "softmax_log": "on the reals, as its own text says",
    "infinite_number": "since a number that float32 holds, an infinity too, is asked for as it is",
    "nearly_one": "since 1 is asked for as it is", "nearly_one_amplified": "since 1 is asked for as it is",
}  # fmt: skip
"""Rules that say they are false, or nothing, and are true: why."""
FALSE: dict[str, str] = {
    "average_pool_as_conv": "at an infinite constant, the mean of infinities of both signs is NaN",
    "merge_of_one_weight": "for a batched weight the right side is ill-typed: a guard is missing",
    "group_split": "from 300 channels on, as its own text says",
}  # fmt: skip
"""Rules that say they are true and are not everywhere."""
OUTSIDE: dict[str, str] = {"many_numbers": "false at rank 5, which its proof does not cover: such matches are proved one by one"}
"""False rules that are proved where they are true; the scope says where that is."""


@dataclass(frozen=True)
class Judged:
    """A rule, whether it is true, and what the prover says."""

    file: str
    name: str
    true: bool
    verdict: str
    scope: str
    reason: str
    rounding: str
    seconds: float

    @property
    def is_proved(self) -> bool:
        return self.verdict in ("proved", "proved for these sizes")

    @property
    def is_wrong(self) -> bool:
        return self.is_proved and not self.true and self.name not in OUTSIDE


def files(names: Sequence[str]) -> list[Path]:
    """Return the files of rules, all of them where none is named."""
    return [FOLDER / f"{name}.py" for name in names] if names else sorted(FOLDER.glob("*.py"))


def judged(path: Path, seconds: float) -> list[Judged]:
    """Return what the prover says of the rules of a file."""
    found = []
    for each in read_rules(path):
        start = time.process_time()
        if isinstance(each, Refusal):
            found.append(Judged(path.stem, each.name, False, "refused", "", each.error.what, "", 0.0))
            continue
        true = (re.search(r"\bTRUE\b", each.text) is not None or each.name in TRUE) and each.name not in FALSE
        try:
            proof = prove(each, Effort(seconds=seconds))
            verdict, scope, reason = str(proof.verdict), proof.scope, proof.told_briefly
        except EinsatError as error:
            verdict, scope, reason = "refused", "", error.what
        found.append(Judged(path.stem, each.name, true, verdict, scope, reason, each.rounding, time.process_time() - start))
    return found


def line(one: Judged) -> str:
    """Return what is printed of a rule."""
    mark = "WRONG" if one.is_wrong else "true" if one.true else "false"
    return f"{one.file}.{one.name:32} {mark:6} {one.verdict:24} {one.seconds:6.2f} s  {one.scope or one.reason}"[:170]


def table(found: Sequence[Judged], command: str) -> str:
    """Return the page."""
    true, false = [one for one in found if one.true], [one for one in found if not one.true]
    proved, wrong = [one for one in true if one.is_proved], [one for one in false if one.is_wrong]
    rows = [
        f"| {one.file} | `{one.name}` | {str(one.true).lower()} | {one.verdict} | {_cell(one)} | {one.rounding} | {one.seconds:.2f} |"
        for one in found
    ]  # fmt: skip
    names = f" ({', '.join(one.name for one in wrong)})" if wrong else ""
    count = f"{len(false)} false rules: {len(wrong)} called proved{names}. {len(true)} true rules: {len(proved)} proved."
    notes = [f"* `{name}`: {why}" for name, why in (*TRUE.items(), *FALSE.items(), *OUTSIDE.items()) if why]
    return "\n".join([
        "# Rules made to fool the prover", "", sentence(about(command)), "",
        f"{count} Seconds are of the processor.", "",
        "Where a rule's own text is mistaken about it:", "", *notes, "",
        "| file | rule | it is | verdict | scope, or why not | rounding | seconds |", "|---|---|---|---|---|---|---|", *rows, "",
    ])  # fmt: skip


def _cell(one: Judged) -> str:
    return (one.scope or one.reason).replace("|", "/").replace("\n", " ")[:110]


def main() -> int:
    """Print a line a rule; return 1 where a false one is called proved."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.red_team", epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Ask the prover about rules that were made to fool it: nothing that is false may be called proved.",
    )  # fmt: skip
    parser.add_argument("--file", action="append", default=[], metavar="NAME", help="a file of tests/red_team; repeatable")
    parser.add_argument("--seconds", type=float, default=30.0, metavar="S", help="processor time for one rule (default: 30)")
    parser.add_argument("--jobs", type=int, default=0, metavar="N", help="processes, each for files of its own (default: all usable cores)")
    parser.add_argument("--record", action="store_true", help="write bench/results/red_team.md")
    arguments = parser.parse_args()
    found: list[Judged] = []
    paths = files(arguments.file)
    with ProcessPoolExecutor(max(1, min(arguments.jobs or len(os.sched_getaffinity(0)), len(paths))), get_context("spawn")) as pool:
        for several in pool.map(judged, paths, [arguments.seconds] * len(paths)):
            for one in several:
                found.append(one)
                print(line(one), flush=True)
    if arguments.record:
        RESULTS.write_text(table(found, f"python -m bench.red_team --seconds {arguments.seconds:g} --record"), encoding="utf-8")
    return 1 if any(one.is_wrong for one in found) else 0


if __name__ == "__main__":
    sys.exit(main())
