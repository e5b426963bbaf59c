"""Optimise every bench model and time it beside its peers, in turns in the same run.

    python -m bench.run                                   all models, all engines that are installed
    python -m bench.run --list unseen --name unseen       networks exported by torch, see bench.unseen
    python -m bench.run --models resnet18,dcgan --batch 1 --engines onnxruntime,openvino
    python -m bench.run --engines onnxruntime,openvino --engines resnet18=onnxruntime,torch_compile,tvm
    python -m bench.run --resume                          only the rows that are missing, failed, or lack an engine
    python -m bench.run -- --budget 30s                   flags after -- go to egraph.optimize

Every row is written as soon as it is measured; Ctrl-C keeps those that are there.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from bench.engines import ENGINES, OPENVINO_DEFAULT, OURS
from bench.environment import differences, environment
from bench.models import MODELS
from bench.row import Request, measure_row
from bench.table import table
from bench.unseen import UNSEEN

RESULTS = Path(__file__).parent / "results"
NEEDS = {
    **dict.fromkeys(OURS, "runtime"), "onnxruntime": "onnxruntime", **dict.fromkeys(("openvino", OPENVINO_DEFAULT), "openvino"),
    "torch_compile": "torch", "tvm": "tvm",
}  # fmt: skip
LISTS = {"own": MODELS, "unseen": UNSEEN}
Rows = dict[tuple[str, int], dict[str, Any]]


class BadArguments(Exception):
    """The command cannot be done as it is; the text says how it can."""


def installed_engines() -> tuple[str, ...]:
    return tuple(name for name in ENGINES if name != OPENVINO_DEFAULT and importlib.util.find_spec(NEEDS[name]) is not None)


def engines_by_model(texts: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
    """Parse ``A,B`` (every model) and ``MODEL=A,B``; the key of the former is empty. Our own engine is always there."""
    found = {"": installed_engines()}
    for text in texts:
        model, _, names = text.rpartition("=")
        engines = tuple(dict.fromkeys(["einsat", *names.split(",")]))
        if model and not any(model in models for models in LISTS.values()):
            raise BadArguments(f"--engines {text}: there is no model {model!r}; python -m bench.models lists them")
        if unknown := [name for name in engines if name not in ENGINES]:
            raise BadArguments(f"--engines {text}: there is no engine {', '.join(unknown)}; there are {', '.join(ENGINES)}")
        found[model] = engines
    return found


def read_rows(path: Path, where: Mapping[str, Any]) -> Rows:
    """Return the rows of a result file of the same environment, none where there is no file."""
    if not path.exists():
        return {}
    stored = json.loads(path.read_text(encoding="utf-8"))
    if other := differences(stored["environment"], where):
        raise BadArguments(f"--resume: {path.name} was measured elsewhere ({'; '.join(other)}); choose another --name")
    return {(row["model"], row["batch"]): row for row in stored["rows"]}


def is_whole(row: Mapping[str, Any], engines: Sequence[str]) -> bool:
    """Say whether a row needs no measuring: without an error, and every engine has a time or a reason."""
    return "error" not in row and all(engine in row["median_us"] or engine in row["failed"] for engine in engines)


def write(stem: Path, rows: Rows, where: Mapping[str, Any]) -> None:
    """Write both result files, each whole or not at all."""
    listed = list(rows.values())
    texts = {".json": json.dumps({"environment": where, "rows": listed}, indent=1, sort_keys=True) + "\n", ".md": table(listed, where)}
    for suffix, text in texts.items():
        partial = stem.with_suffix(f"{suffix}.partial")
        partial.write_text(text, encoding="utf-8")
        partial.replace(stem.with_suffix(suffix))


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", choices=[*LISTS], default="own", help="which list of models (default: own)")
    parser.add_argument("--models", help="comma-separated names of either list (default: all of --list; python -m bench.models lists them)")
    parser.add_argument("--batch", type=int, default=0, help="only this batch size (default: every size of each model)")
    parser.add_argument(
        "--engines", action="append", default=[], metavar="[MODEL=]A,B", help="of all models, or of one; default: all that are installed"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=4.0, help="timing budget of an engine and model (default: 4)")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds after which a row is given up (default: 900)")
    parser.add_argument("--no-warm", action="store_true", help="do not optimise a second time")
    parser.add_argument("--name", default="cpu", help="stem of the result files")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where result files lie (default: bench/results)")
    parser.add_argument("--resume", action="store_true", help="keep the rows of the result file, add those that are missing")
    parser.add_argument("extra", nargs="*", help="after --, passed to egraph.optimize")
    return parser


def run(options: argparse.Namespace) -> int:
    """Measure what is asked for; return the exit code."""
    known = {**LISTS["own"], **LISTS["unseen"]}
    names = options.models.split(",") if options.models else [*LISTS[options.list]]
    if unknown := [name for name in names if name not in known]:
        raise BadArguments(f"--models: there is no {', '.join(unknown)}; python -m bench.models and bench.unseen list them")
    if any(text.split("=")[0] in ("--database", "-o", "--output", "--frozen") for text in options.extra):
        raise BadArguments("--database, --frozen and -o cannot be given: cold and warm runs use a database and folders of their own")
    engines = engines_by_model(options.engines)
    where = environment(options.threads, shown_command(sys.argv[1:], options.results))
    stem = options.results / options.name
    rows = read_rows(stem.with_suffix(".json"), where) if options.resume else {}
    options.results.mkdir(parents=True, exist_ok=True)
    todo = [(name, batch) for name in names for batch in known[name].batches if options.batch in (0, batch)]
    for name, batch in todo:
        wanted = engines.get(name, engines[""])
        if (name, batch) in rows and is_whole(rows[name, batch], wanted):
            continue
        request = Request(wanted, options.threads, options.seconds, options.limit, not options.no_warm, tuple(options.extra))
        row = measure_row(known[name], batch, request)
        rows[name, batch] = row
        write(stem, rows, where)
        shown = row.get("error") or {engine: round(time_us) for engine, time_us in row["median_us"].items()}
        print(f"{name} b{batch}: {shown} ({row['seconds']:.0f} s)", file=sys.stderr, flush=True)
    write(stem, rows, where)
    print(table(list(rows.values()), where))
    return 0


def shown_command(arguments: Sequence[str], results: Path) -> list[str]:
    """Return the command without the place of the results."""
    kept = [text for text in arguments if text not in ("--results", str(results)) and not text.startswith("--results=")]
    return ["python -m bench.run", *kept]


def main() -> int:
    """Run the command line; return its exit code."""

    def terminated(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    parser = build_parser()
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, terminated)
    try:
        return run(options)
    except BadArguments as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        print("interrupted: the rows that were measured are kept; --resume adds the others", file=sys.stderr)
        return 130


if __name__ == "__main__":
    raise SystemExit(main())
