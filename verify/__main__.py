"""Test the rules of a file on random shapes and data: ``python -m verify rules.py``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from egraph.errors import RuleError
from egraph.rule_file import load_rules
from verify.random_testing import check_rule


def main() -> int:
    """Print a line a rule; return 1 when one is refuted or never applied, 2 when the file cannot be used."""
    parser = argparse.ArgumentParser(prog="python -m verify", description=__doc__.split(":")[0] + ".")
    parser.add_argument("rules", type=Path, help="a Python file that ends in RULES = (my_rule, ...)")
    parser.add_argument("--cases", type=int, default=64, help="random cases to compare of each rule (default: 64)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random draws (default: 0)")
    arguments = parser.parse_args()
    try:
        results = [check_rule(rule, arguments.seed, arguments.cases, 500 * arguments.cases) for rule in load_rules(arguments.rules)]
    except RuleError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for result in results:
        print(result)
    return 0 if all(result.passed for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
