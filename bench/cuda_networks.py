"""Optimise networks with ``--target cuda:h100`` on the recorded device: search, lower, run, check. Costs are estimates; no GPU is needed.

    python -m bench.cuda_networks [MODEL ...] [--batch N ...] [--target cuda:h100] [--budget 60s] [--record [FOLDER]] [--add]
    python -m bench.cuda_networks --import-profiles bench/results/cuda_h100.jsonl.gz --record

Each network runs at the sizes of its paper, through the command line. The error is the largest of any output against onnxruntime. With
imported kernel times of such a GPU, kernels cost what they took there; the page states their share of each program's cost.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx

from bench.environment import ROOT
from bench.models import MODELS
from bench.record import RESULTS, opening, origin, record
from egraph.tensor import format_fragment
from egraph.tensor.text import parse_program
from runtime.devices import DESCRIBED, device
from runtime.profile import Database
from runtime.profile.tables import PLAN_MARK

NETWORKS = ("infogan", "dcgan", "fsrcnn", "gcn_block", "resnet18", "csrnet", "longformer_block")
"""The networks of the published comparison."""
BATCHES = (1, 16)


@dataclass(frozen=True)
class Row:
    """One network on the recorded device."""

    model: str
    batch: int
    target: str
    status: str
    steps: dict[str, int]
    """The number of steps of each kind."""
    max_rel_err: float | None
    estimated_before_us: float | None
    estimated_after_us: float | None
    arena_bytes: int
    stop_reason: str
    device: str
    """The key under which costs are stored: it names the libraries that were asked for plans and estimates."""
    message: str = ""
    commit: str = ""
    """The commit at which the row was made."""
    timed_share: float = 0.0
    """The share of the optimised program's cost that comes from kernels timed on such a GPU."""


def timed_share(artefact: Path, database: Path, target: str) -> float:
    """Return the share of a program's cost that comes from kernels timed on such a GPU."""
    _, _, text = (artefact / "program.txt").read_text(encoding="utf-8").partition("\n")  # the first line names the file of weights
    program = parse_program(text)
    with closing(Database.open(database, read_only=True)) as known:
        records = [record for record in known.records() if record.device.startswith(device(target).measured_key)]
    timed = {(record.fragment, record.implementation.partition(PLAN_MARK)[0]) for record in records if record.status == "ok"}
    costs_us = {True: 0.0, False: 0.0}
    for kernel in program.kernels:
        key = format_fragment(kernel.fragment), kernel.implementation.text.partition(PLAN_MARK)[0]
        costs_us[key in timed] += kernel.cost_us
    return costs_us[True] / (sum(costs_us.values()) or 1.0)


def measured(name: str, batch: int, target: str, budget: str, folder: Path, profiles: Sequence[Path]) -> Row:
    """Optimise a network; return its row."""
    path = folder / f"{name}.onnx"
    onnx.save(MODELS[name].make(batch), path)
    command = [sys.executable, "-m", "egraph.optimize", str(path), "--target", target, "--budget", budget, "--check", "1", "--json", "-q"]
    database = folder / "p.sqlite"
    command += ["--database", str(database), *(word for each in profiles for word in ("--import-profiles", str(each.resolve())))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return Row(name, batch, target, "failed", {}, None, None, None, 0, "", "", done.stderr.strip()[-300:])
    printed: dict[str, Any] = json.loads(done.stdout)
    plan = json.loads((folder / f"{name}.einsat" / "plan.json").read_text())
    estimated = printed["estimated_us"]
    return Row(
        name, batch, target, printed["status"], dict(sorted(Counter(step["kind"] for step in plan["steps"]).items())),
        printed["max_rel_err"], estimated["unoptimized"], estimated["optimized"], plan["arena_bytes"],
        printed["search"]["stop_reason"], printed["device"],
        timed_share=timed_share(folder / f"{name}.einsat", database, target) if profiles else 0.0,
    )  # fmt: skip


def page(rows: list[Row], where: dict[str, Any]) -> str:
    """Return the table."""
    lines = [
        "# Networks on the recorded CUDA device", "", *opening(where, ("egglog", "onnxruntime")),
        "**No program ran on a GPU here.** Kernels ran as their own CUDA text on a processor, library calls by their recipes' meanings.",
        "Times are sums over kernels: of those that such a GPU has measured one by one (`--import-profiles`), their measured times, of",
        "others estimates. *measured*: the part of the optimised program's time that is measured. Plain: each operator by its fastest",
        "kernel.", "",
        "| network | batch | target | status | steps | error | plain | optimised | measured | arena | commit |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for row in rows:
        steps = ", ".join(f"{count} {kind}" for kind, count in row.steps.items())
        error = f"{row.max_rel_err:.1g}" if row.max_rel_err is not None else row.message.replace("\n", " ")
        times = [f"{us:.0f} us" if us is not None else "" for us in (row.estimated_before_us, row.estimated_after_us)]
        size = f"{row.arena_bytes / 1e6:.1f} MB"
        cells = [row.model, str(row.batch), row.target, row.status, steps, error, *times, f"{row.timed_share:.0%}", size, row.commit]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def on_record(folder: Path) -> list[Row]:
    """Return the rows recorded in a folder."""
    path = folder / "cuda_networks.json"
    if not path.exists():
        return []
    recorded = json.loads(path.read_text())
    return [Row(**{"commit": recorded["commit"], **{k: v for k, v in row.items() if k != "commit" or v}}) for row in recorded["rows"]]


def main() -> int:
    form = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m bench.cuda_networks", description=__doc__, formatter_class=form)
    parser.add_argument("models", nargs="*", default=NETWORKS, help=f"networks (default: {' '.join(NETWORKS)})")
    parser.add_argument("--batch", type=int, nargs="+", default=BATCHES, help="batch sizes (default 1 16)")
    parser.add_argument("--target", choices=DESCRIBED, default=DESCRIBED[0], help=f"what for (default {DESCRIBED[0]})")
    parser.add_argument("--budget", default="60s", help="time for each (default 60s)")
    profiles_help = "kernel times that such a GPU has measured, as bench/results/cuda_h100.jsonl.gz"
    parser.add_argument("--import-profiles", nargs="+", type=Path, default=[], metavar="FILE", help=profiles_help)
    parser.add_argument("--record", type=Path, nargs="?", const=RESULTS, metavar="FOLDER", help="write cuda_networks.json and .md")
    parser.add_argument("--add", action="store_true", help="keep the rows on record of what is not measured now")
    arguments = parser.parse_args()
    where = origin(1, ["python", "-m", "bench.cuda_networks", *sys.argv[1:]])
    rows = on_record(arguments.record or RESULTS) if arguments.add else []
    for batch, name in itertools.product(arguments.batch, arguments.models):
        with tempfile.TemporaryDirectory(prefix="einsat-bench-") as folder:
            made = measured(name, batch, arguments.target, arguments.budget, Path(folder), arguments.import_profiles)
            row = replace(made, commit=where["commit"])
        keys = [(each.model, each.batch, each.target) for each in rows]
        if (key := (name, batch, arguments.target)) in keys:
            rows[keys.index(key)] = row
        else:
            rows.append(row)
        print(row, flush=True)
        if arguments.record:
            record(arguments.record, "cuda_networks", where, rows, page(rows, where))
    print(page(rows, where))
    return int(any(row.status == "failed" for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
