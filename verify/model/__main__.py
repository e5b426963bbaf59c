"""The command: ``python -m verify.model a.onnx b.onnx``."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from egraph.tolerance import Tolerance

EXAMPLES = """examples:
  python -m verify.model model.onnx model.opt.onnx        what the optimiser wrote, in onnxruntime
  python -m verify.model model.onnx model.einsat          the same, with the artefact's own kernels
  python -m verify.model before.onnx after.onnx --json    any two models of one interface

methods, strongest first: structure (the same operators), proof (one normal form), exact (equal in F_p), float64 and float32
(equal to rounding, by the operators' meanings and in onnxruntime). Parts are cut at the tensors that both models name.

exit codes: 0 equal, 1 different, 2 usage, or models that cannot be compared
"""


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    matched = re.fullmatch(r"(.+):(\d+(?:[,x]\d+)*|)", text)
    if not matched:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME:SIZES, for example x:1,3,224,224")
    return matched[1], tuple(int(size) for size in re.split("[,x]", matched[2]) if size)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m verify.model", description="Compare two models, part by part and on random inputs.", epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("first", type=Path, help="an ONNX model")
    add("second", type=Path, help="another one, or a folder model.einsat")
    add(
        "--tolerance", type=float, default=Tolerance().relative, metavar="REL",
        help="largest accepted relative error of a tensor (default: 1e-4)",
    )  # fmt: skip
    add("--inputs", type=int, default=3, metavar="N", help="random inputs to compare on (default: 3)")
    add("--seed", type=int, default=0, metavar="N", help="seed of the random inputs (default: 0)")
    add("--shape", type=_shape, action="append", default=[], metavar="NAME:SIZES", help="fix an input's sizes; repeatable")
    add("--json", action="store_true", help="print one JSON object on standard output")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare two models; return the exit code."""
    chosen = build_parser().parse_args(arguments)
    from egraph.errors import EinsatError
    from runtime.errors import ExecutionError
    from verify.model.comparing import Settings, compare_models

    settings = Settings(chosen.tolerance, max(1, chosen.inputs), chosen.seed, shapes=dict(chosen.shape))
    try:
        comparison = compare_models(chosen.first, chosen.second, settings)
    except (EinsatError, ExecutionError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(comparison.to_json(), indent=2) if chosen.json else "\n".join(comparison.lines()))
    return 0 if comparison.equal else 1


if __name__ == "__main__":
    sys.exit(main())
