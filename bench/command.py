"""Command lines of benchmarks that write every row as soon as it is measured: common flags, resuming and exit codes."""

from __future__ import annotations

import argparse
import itertools
import json
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from bench.environment import differences
from bench.record import RESULTS

FOLDER_FLAGS = ("--results", "--artefacts")
"""Flags whose values are folders of one machine: results do not name them."""
Rows = dict[tuple[str, int], dict[str, Any]]
"""Rows by model and batch size."""


class BadArguments(Exception):
    """A command line that cannot be run as it is; the text says how to change it."""


def add_result_arguments(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the flags of threads and of the result files, whose stem is ``name`` unless another is given."""
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--name", default=name, help="stem of the result files")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the result files (default: bench/results)")
    parser.add_argument("--resume", action="store_true", help="keep the rows of the result file, add those that are missing or failed")


def parse(parser: argparse.ArgumentParser, arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse a command line; ``extra`` holds the arguments after ``--``, ``command`` the line as results show it."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    end = words.index("--") if "--" in words else len(words)
    options = parser.parse_args(words[:end])
    options.extra, options.command = words[end + 1 :], [parser.prog, *without_folders(words)]
    return options


def without_folders(arguments: Sequence[str]) -> list[str]:
    """Return arguments without the names of this machine's folders."""
    kept: list[str] = []
    for flag, text in itertools.pairwise(["", *arguments]):
        if flag in FOLDER_FLAGS or text in FOLDER_FLAGS or text.startswith(tuple(f"{each}=" for each in FOLDER_FLAGS)):
            continue
        kept.append(",".join(Path(each).name if each.endswith(".onnx") else each for each in text.split(",")))
    return kept


def run_command(parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace], int], arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code; an interrupted run keeps its rows."""

    def terminated(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    options = parse(parser, arguments)
    before = signal.signal(signal.SIGTERM, terminated)
    try:
        return run(options)
    except BadArguments as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        print("interrupted: the rows that were measured are kept; --resume adds the others", file=sys.stderr)
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)


def read_rows(path: Path, where: Mapping[str, Any]) -> Rows:
    """Return the rows of a result file of the same environment; none if there is no file."""
    if not path.exists():
        return {}
    stored = json.loads(path.read_text(encoding="utf-8"))
    if other := differences(stored["environment"], where):
        raise BadArguments(f"--resume: {path.name} was measured elsewhere ({'; '.join(other)}); choose another --name")
    return {(row["model"], row["batch"]): row for row in stored["rows"]}


def write(stem: Path, rows: Sequence[Mapping[str, Any]], where: Mapping[str, Any], page: str) -> None:
    """Write both result files, each completely or not at all."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    document = json.dumps({"environment": where, "rows": rows}, indent=1, sort_keys=True) + "\n"
    for suffix, text in {".json": document, ".md": page}.items():
        partial = stem.with_suffix(f"{suffix}.partial")
        partial.write_text(text, encoding="utf-8")
        partial.replace(stem.with_suffix(suffix))
