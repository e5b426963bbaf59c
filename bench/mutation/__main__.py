"""Mutate rules and ask the prover: ``python -m bench.mutation``. Nothing that is wrong may be proved."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from egraph.rule import MergeRule, Rule

EXAMPLES = """examples:
  python -m bench.mutation --mutants 200          mutants of the shipped rules, drawn at random
  python -m bench.mutation mine.py --cases 256    those of your own rules, compared on more instances
  python -m bench.mutation --progress kept.jsonl  the same command goes on where it was ended, with the same rules and prover

exit codes: 0 nothing that is wrong was proved, 1 something was, 2 usage, or the file cannot be used
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the fates of the mutants; return 1 if one that is wrong was proved."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.mutation", epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Change rules at random and ask the prover: nothing that is wrong may be proved.",
    )  # fmt: skip
    parser.add_argument("rules", type=Path, nargs="?", help="a Python file that ends in RULES = (my_rule, ...); the shipped rules without")
    parser.add_argument("--mutants", type=int, default=2000, metavar="N", help="mutants to judge, drawn at random (default: 2000)")
    parser.add_argument(
        "--cases", type=int, default=64, metavar="N", help="random instances on which a proved one is compared (default: 64)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the random draws (default: 0)")
    parser.add_argument("--results", type=Path, metavar="FOLDER", help="write mutation.json and mutation.md there")
    parser.add_argument("--progress", type=Path, metavar="FILE", help="keep what is judged there, and go on from it")
    options = parser.parse_args(arguments)
    from bench.mutation.campaign import run
    from bench.mutation.progress import Progress, campaign_key
    from bench.mutation.results import table, write
    from egraph.errors import EinsatError
    from egraph.rewrite.file import load_rules

    try:
        rules = _shipped() if options.rules is None else load_rules(options.rules)
    except EinsatError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.results is not None:
        options.results.mkdir(parents=True, exist_ok=True)
    progress = Progress()
    if options.progress is not None:
        progress = Progress.read(options.progress, campaign_key(rules, options.mutants, options.seed, options.cases))
    tally = run(
        rules, options.mutants, options.seed, options.cases, lambda text: print(text, file=sys.stderr, flush=True), progress
    )  # fmt: skip
    print(table(tally, progress.seconds))
    if options.results is not None:
        given = f"{options.rules} " if options.rules else ""
        command = f"python -m bench.mutation {given}--mutants {options.mutants} --cases {options.cases} --seed {options.seed}"
        write(options.results, tally, progress.seconds, command)
    return 1 if tally.wrong else 0


def _shipped() -> tuple[Rule | MergeRule, ...]:
    from egraph.rules import RULES

    return RULES


if __name__ == "__main__":
    sys.exit(main())
