"""Optimise every bench model and time it beside its peers, in turns in the same run.

    python -m bench.run                                   all models, all engines that are installed
    python -m bench.run --list unseen --name unseen       networks exported by torch, see bench.unseen
    python -m bench.run --list zoo --name zoo             image networks of timm, see bench.zoo
    python -m bench.run --models resnet18,dcgan --batch 1 --engines onnxruntime,openvino
    python -m bench.run --models mine.onnx --shape ids:1,128 --name mine
                                                          a model of your own, with sizes that it leaves open
    python -m bench.run --engines onnxruntime,openvino --engines resnet18=onnxruntime,torch_compile,tvm
    python -m bench.run --resume                          only the rows that are missing, failed, or lack an engine
    python -m bench.run -- --budget 30s                   flags after -- go to egraph.optimize

Every row is written as soon as it is measured, so Ctrl-C keeps all finished rows.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from bench.command import BadArguments, add_result_arguments, read_rows, run_command, write
from bench.engines import ENGINES, OPENVINO_DEFAULT, OURS, ROUNDING, TORCH_AUTOCAST
from bench.environment import environment
from bench.models import MODELS, BenchModel, of_file
from bench.published import PUBLISHED
from bench.row import Request, measure_row
from bench.table import table
from bench.unseen import UNSEEN
from bench.zoo import ZOO

NEEDS = {
    **dict.fromkeys(OURS, "runtime"), "onnxruntime": "onnxruntime", **dict.fromkeys(("openvino", OPENVINO_DEFAULT), "openvino"),
    **dict.fromkeys(("torch_compile", TORCH_AUTOCAST), "torch"), "tvm": "tvm",
}  # fmt: skip
LISTS: Mapping[str, Mapping[str, BenchModel]] = {"own": MODELS, "unseen": UNSEEN, "published": PUBLISHED, "zoo": ZOO}


def installed_engines() -> tuple[str, ...]:
    return tuple(name for name in ENGINES if name not in ROUNDING and importlib.util.find_spec(NEEDS[name]) is not None)


def engines_by_model(texts: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
    """Parse ``A,B`` (every model) and ``MODEL=A,B``; the key of the former is empty. Our own engine is always included."""
    by_model = {"": installed_engines()}
    for text in texts:
        model, _, names = text.rpartition("=")
        engines = tuple(dict.fromkeys(["einsat", *names.split(",")]))
        if model and not any(model in models for models in LISTS.values()):
            raise BadArguments(f"--engines {text}: there is no model {model!r}; python -m bench.models lists them")
        if unknown := [name for name in engines if name not in ENGINES]:
            raise BadArguments(f"--engines {text}: there is no engine {', '.join(unknown)}; there are {', '.join(ENGINES)}")
        by_model[model] = engines
    return by_model


def is_whole(row: Mapping[str, Any], engines: Sequence[str]) -> bool:
    """Return whether a row is complete: without an error, and every engine has a time or a reason."""
    return "error" not in row and all(engine in row["median_us"] or engine in row["failed"] for engine in engines)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", choices=[*LISTS], default="own", help="which list of models (default: own)")
    parser.add_argument(
        "--models", help="comma-separated names of any list, or .onnx files (default: all of --list; python -m bench.models lists them)"
    )
    parser.add_argument(
        "--shape", action="append", default=[], metavar="NAME:SIZES", help="give an input of .onnx files its sizes, if open; repeatable"
    )
    parser.add_argument("--batch", type=int, default=0, help="only this batch size (default: every size of each model)")
    parser.add_argument(
        "--engines", action="append", default=[], metavar="[MODEL=]A,B", help="of all models, or of one; default: all that are installed"
    )
    parser.add_argument("--seconds", type=float, default=4.0, help="timing budget of an engine and model (default: 4)")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds after which a row is given up (default: 900)")
    parser.add_argument("--no-warm", action="store_true", help="do not optimise a second time")
    add_result_arguments(parser, "cpu")
    return parser


def run(options: argparse.Namespace) -> int:
    """Measure what is asked for; return the exit code."""
    models = {name: model for models in LISTS.values() for name, model in models.items()}
    names = options.models.split(",") if options.models else [*LISTS[options.list]]
    given = {text: model for text in names if text not in models and (model := of_file(text, tuple(options.shape)))}
    if unknown := [name for name in names if name not in models and name not in given]:
        lists = "bench.models, bench.unseen, bench.published and bench.zoo"
        raise BadArguments(f"--models: there is no model and no .onnx file {', '.join(unknown)}; python -m {lists} list the models")
    if options.shape and not given:
        raise BadArguments("--shape is for .onnx files, and --models names none")
    names = [given[name].name if name in given else name for name in names]
    models |= {model.name: model for model in given.values()}
    if any(text.split("=")[0] in ("--database", "-o", "--output", "--frozen") for text in options.extra):
        raise BadArguments("--database, --frozen and -o cannot be given: cold and warm runs use a database and folders of their own")
    engines = engines_by_model(options.engines)
    where = environment(options.threads, options.command)
    stem = options.results / options.name
    rows = read_rows(stem.with_suffix(".json"), where) if options.resume else {}
    todo = [(name, batch) for name in names for batch in models[name].batches if options.batch in (0, batch)]
    for name, batch in todo:
        row_engines = engines.get(name, engines[""])
        if (name, batch) in rows and is_whole(rows[name, batch], row_engines):
            continue
        request = Request(row_engines, options.threads, options.seconds, options.limit, not options.no_warm, tuple(options.extra))
        row = measure_row(models[name], batch, request)
        rows[name, batch] = row
        write(stem, list(rows.values()), where, table(list(rows.values()), where))
        shown = row.get("error") or {engine: round(time_us) for engine, time_us in row["median_us"].items()}
        print(f"{name} b{batch}: {shown} ({row['seconds']:.0f} s)", file=sys.stderr, flush=True)
    page = table(list(rows.values()), where)
    write(stem, list(rows.values()), where, page)
    print(page)
    return 0


def main() -> int:
    """Run the command line; return its exit code."""
    return run_command(build_parser(), run)


if __name__ == "__main__":
    raise SystemExit(main())
