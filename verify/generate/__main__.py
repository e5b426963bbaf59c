"""The command: ``python -m verify.generate --ops matmul,add,concat --depth 2 -o rules_generated.py``."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from verify.generate.productions import PRODUCTIONS

EXAMPLES = f"""operators: {", ".join(PRODUCTIONS)}

examples:
  python -m verify.generate --ops matmul,add,relu,concat --depth 2                 print the rules
  python -m verify.generate --ops matmul,add,mul,concat,relu --depth 3 -o mine.py  write a rule file for --rules mine.py

exit codes: 0 done, 2 usage, 130 interrupted; what is proved by then is written
"""


def _seconds(text: str) -> float:
    matched = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|h|)", text.strip())
    if not matched or float(matched[1]) <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time, for example 60s or 5m")
    return float(matched[1]) * {"s": 1, "": 1, "m": 60, "h": 3600}[matched[2]]


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m verify.generate", formatter_class=argparse.RawDescriptionHelpFormatter, epilog=EXAMPLES,
        description="Find rewrite rules: enumerate small terms, compare what they compute, prove what agrees.",
    )  # fmt: skip
    add = parser.add_argument
    add("--ops", required=True, metavar="OP,OP", help="the operators to combine, see below")
    add("--depth", type=_positive, default=2, metavar="N", help="operators a side at most (default: 2)")
    add("--variables", type=_positive, default=4, metavar="N", help="variables an equation at most (default: 4)")
    add("--terms", type=_positive, default=20_000, metavar="N", help="terms at most that one typing is tried with (default: 20000)")
    add("--budget", type=_seconds, metavar="TIME", help="end early, with what is proved by then (default: run to the end)")
    add("-o", "--output", type=Path, metavar="FILE.py", help="write a rule file (default: print it)")
    add("--json", action="store_true", help="print one JSON object on standard output")
    add("-q", "--quiet", action="store_true", help="say nothing while working")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Generate rules according to the command line; return the exit code."""
    chosen = _parser().parse_args(arguments)
    from verify.generate.command import run  # a slow import that --help does not need

    return run(chosen)


if __name__ == "__main__":
    sys.exit(main())
