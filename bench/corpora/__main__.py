"""Judge the rules of corpora: ``python -m bench.corpora rules.json``.

Every entry is refuted with a counterexample, or proved for all sizes, and compared with the corpus's own verdict. An
interrupt (Ctrl-C) ends the run; the decisions made so far are printed, and written if ``--results`` is given.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

WORK = 400_000
"""Units (``verify.budget``) after which a proof is abandoned, about 20,000 a second."""
EXAMPLES = """examples:
  python -m bench.corpora taso_substitutions.json                  a line an entry and a summary
  python -m bench.corpora taso_substitutions.json --only taso-063  one entry with all details: its counterexample, or its guard
  python -m bench.corpora tensat_rules.json --json                 all verdicts as one JSON object

exit codes: 0 no verdict contradicts what the corpus says itself, 1 some verdict does, 2 usage, or a file cannot be used,
130 interrupted
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one line per entry and a summary; return 1 if a verdict contradicts the corpus, 2 if a file cannot be used."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.corpora",
        description=str(__doc__).split(":")[0] + ".",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("corpus", type=Path, nargs="+", help="corpora as JSON")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser.add_argument("--only", metavar="ID", default="", help="judge only entries whose name contains this")
    parser.add_argument("--tests", type=int, default=6, help="random cases of every rule before its proof (default: 6)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random draws (default: 0)")
    parser.add_argument("--test-only", action="store_true", help="refute by random tests alone, prove nothing")
    parser.add_argument("--work", type=int, metavar="UNITS", default=WORK, help=f"work after which a proof is given up (default: {WORK})")
    parser.add_argument("--results", type=Path, metavar="FOLDER", help="write corpora.json and corpora.md there")
    options = parser.parse_args(arguments)

    from bench.corpora.command import run  # heavy, and not needed for --help

    return run(options)


if __name__ == "__main__":
    sys.exit(main())
