"""Judge the rules of a corpus: ``python -m verify.corpora rules.json``.

Every entry is refuted with a counterexample, or proved for all sizes, and compared with what the corpus says itself.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from egraph.errors import RuleError
from verify.collecting import rare_collections
from verify.corpora.judge import Judgement, Pains, judge_all
from verify.corpora.read import read_corpus
from verify.prove import Effort, prove

FEW = 8
"""So few entries are shown with all details."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line an entry and a summary; return 1 when a verdict contradicts the corpus, 2 when the file cannot be used."""
    parser = argparse.ArgumentParser(prog="python -m verify.corpora", description=str(__doc__).split(":")[0] + ".")
    parser.add_argument("corpus", type=Path, help="a corpus as JSON")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser.add_argument("--only", metavar="ID", default="", help="judge only entries whose name contains this")
    parser.add_argument("--tests", type=int, default=6, help="random cases of every rule before its proof (default: 6)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random draws (default: 0)")
    parser.add_argument("--test-only", action="store_true", help="refute by random tests alone, prove nothing")
    options = parser.parse_args(arguments)
    start = time.process_time()
    try:
        entries = [entry for entry in read_corpus(options.corpus) if options.only in entry.name]
    except RuleError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    pains = Pains(tests=options.tests, seed=options.seed)
    effort = Effort(tests=0, tries=pains.tries, seed=options.seed, open_cases=1, applications=0)  # judging has tested already
    prover = None if options.test_only else lambda rule: prove(rule, effort)
    found: list[Judgement] = []
    with rare_collections():
        for judgement in judge_all(entries, prover, pains):
            found.append(judgement)
            if not options.json:
                print("\n".join(_lines(judgement, verbose=len(entries) <= FEW)), flush=True)
    seconds = time.process_time() - start
    if options.json:
        told = {"entries": [each.to_json() for each in found], "summary": _counts(found), "cpu_seconds": round(seconds, 2)}
        print(json.dumps(told, indent=1))
    else:
        print(_summary(found, seconds))
    return 1 if any(each.agrees is False for each in found) else 0


def _lines(found: Judgement, *, verbose: bool) -> list[str]:
    agreement = {True: "", False: "  DISAGREES with the corpus", None: ""}[found.agrees]
    guard = f"  if {found.guard}" if found.guard else ""
    lines = [f"{found.entry.name:24} {found.decision}{guard}  {1e3 * found.seconds:.0f} ms{agreement}"]
    if verbose or found.agrees is False:
        lines += [f"    {line}" for line in (found.entry.text, found.note, *found.reason.splitlines()) if line]
    elif found.decision in ("unknown", "not expressible") and found.reason:
        lines.append(f"    {found.reason.splitlines()[0][:160]}")
    return lines


def _counts(found: Sequence[Judgement]) -> dict[str, int]:
    return dict(sorted(Counter(each.decision for each in found).items()))


def _summary(found: Sequence[Judgement], seconds: float) -> str:
    counts = ", ".join(f"{count} {decision}" for decision, count in _counts(found).items())
    compared = [each for each in found if each.agrees is not None]
    agreeing = sum(bool(each.agrees) for each in compared)
    guarded = sum(bool(each.guard) for each in found if each.decision == "refuted")
    middle = 1e3 * median([each.seconds for each in found]) if found else 0.0
    return (
        f"\n{len(found)} entries: {counts}\n"
        f"{agreeing} of {len(compared)} verdicts agree with the corpus; for {guarded} refuted entries a precondition was found\n"
        f"{seconds:.1f} s of processor time, median {middle:.0f} ms an entry"
    )


if __name__ == "__main__":
    sys.exit(main())
