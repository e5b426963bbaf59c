"""The command: ``python -m verify.bisect model.onnx --rules mine.py --unsafe-rules``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from egraph.optimize.arguments import parse_shape
from egraph.tolerance import Tolerance

if TYPE_CHECKING:
    from verify.bisect.search import Finding

EXAMPLES = """examples:
  python -m verify.bisect model.onnx                                     are the programs that the shipped rules make right?
  python -m verify.bisect model.onnx --rules mine.py --unsafe-rules      which of the rules is wrong?

exit codes: 0 accurate, nothing to find; 1 found what is to blame; 2 usage or bad input; 3 inaccurate, and nothing found
"""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m verify.bisect", epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Find the first rule or kernel whose removal makes an optimised model accurate again.",
    )  # fmt: skip
    add = parser.add_argument
    add("model", type=Path, help="the ONNX model")
    add("--rules", type=Path, action="append", default=[], metavar="FILE", help="a Python file with RULES = (...); repeatable")
    add("--unsafe-rules", action="store_true", help="also use rules that are not proved")
    add("--skip-rule", action="append", default=[], metavar="NAME", help="do without a rule; repeatable")
    add("--programs", type=int, default=6, metavar="N", help="programs to compare: the cheapest, others at random (default: 6)")
    add(
        "--tolerance", type=float, default=Tolerance().relative, metavar="REL",
        help="largest accepted relative error of an output (default: 1e-4)",
    )  # fmt: skip
    add("--max-nodes", type=int, default=2_000, metavar="N", help="e-nodes at most (default: 2000)")
    add("--seed", type=int, default=0, metavar="N", help="seed of inputs and prices (default: 0)")
    add("--shape", type=parse_shape, action="append", default=[], metavar="NAME:SIZES", help="fix an input's sizes; repeatable")
    add("--json", action="store_true", help="print one JSON object on standard output")
    add("-q", "--quiet", action="store_true", help="say nothing while working")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Search according to the command line; return the exit code."""
    chosen = build_parser().parse_args(arguments)
    from egraph.errors import EinsatError
    from runtime.leftovers import own_temporary_files

    try:
        with own_temporary_files():
            finding = _run(chosen)
    except EinsatError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(_json(finding), indent=2) if chosen.json else "\n".join(_lines(finding)))
    if finding.accurate:
        return 0
    return 1 if finding.rules or finding.kernels else 3


def _run(chosen: argparse.Namespace) -> Finding:
    from egraph.engine.saturate import Limits
    from egraph.onnx import importer
    from egraph.optimize.admission import choose_rules
    from egraph.optimize.check import find_feeds, open_original
    from egraph.optimize.original import at_sizes
    from runtime.feeds import random_feeds
    from verify.bisect.search import Settings, bisect

    def tell(text: str) -> None:
        if not chosen.quiet:
            print(text, file=sys.stderr)

    rules = choose_rules(chosen.rules, chosen.skip_rule, allow="finite", unsafe=chosen.unsafe_rules)
    graph = importer.load(chosen.model, shapes=dict(chosen.shape)).graph
    with at_sizes(chosen.model, dict(chosen.shape)) as model:
        session = open_original(model, 1, optimise=False)
    feeds = random_feeds(find_feeds(session, graph, chosen.seed), chosen.seed)
    names = [name for name, _ in graph.outputs]
    expected = dict(zip(names, session.run(names, feeds), strict=True))
    limits = Limits(seconds=60.0, e_nodes=max(1, chosen.max_nodes), iterations=8)
    settings = Settings(chosen.tolerance, max(1, chosen.programs), chosen.seed, limits=limits)
    return bisect(graph, rules, feeds, expected, settings, tell)


def _lines(finding: Finding) -> list[str]:
    if finding.accurate:
        return [f"accurate: largest relative error {finding.error:.2g}; nothing to find"]
    lines = [f"output {finding.output} is wrong, relative error {finding.error:.2g}"]
    lines += [f"  without {name}: {f'still {left:.2g}' if left else 'accurate'}" for name, left in finding.tried]
    if finding.rules:
        lines += [f"to blame: {', '.join(finding.rules)}", "look at it with: python -m verify FILE --rule " + finding.rules[0]]
    lines += [f"to blame: kernel {kernel}" for kernel in finding.kernels]
    lines += [f"first changed at: {', '.join(finding.source_nodes)}"] if finding.source_nodes else []
    return lines if finding.rules or finding.kernels else [*lines, "no rule and no kernel whose removal helps was found"]


def _json(finding: Finding) -> dict[str, Any]:
    return {
        "accurate": finding.accurate, "error": finding.error, "output": finding.output or None, "rules": list(finding.rules),
        "kernels": list(finding.kernels), "source_nodes": list(finding.source_nodes), "tried": dict(finding.tried),
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
