"""Show where the time of a search goes: processor time by stage and by part of the program, beside the search's result.

    python -m bench.stages MODEL.onnx...                          cold: with a profile database of its own
    python -m bench.stages a.onnx b.onnx -- --budget 30s          flags after -- go to egraph.optimize
    python -m bench.stages MODEL.onnx --database profile.db       with kernels that are measured already
    python -m bench.stages MODEL.onnx --clock work                the budget counts work, not the clock: for a machine that is busy

Work is the time that a quiet machine would have needed: in every tick of 20 ms, the processor time of the thread that had most of
it, among those of this process, of the measuring process and of the compilers. Writes bench/results/stages.json and stages.md.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

from bench.record import RESULTS, opening, origin, record
from egraph.optimize.progress import Progress

TICK_SECONDS, TICKS_A_LOOK = 0.02, 10
"""Seconds between looks at the threads, and looks between listings of the processes."""
LEAST_SHARE = 0.005
"""Parts with a smaller fraction of all processor time are not shown."""
MESSAGE_CHARACTERS = 2_000
PLAIN = "unoptimized"
"""The finalist without rules."""
PARTS = (
    ("verify", "proofs"), ("egraph/optimize/gate", "proofs"), ("egraph/derive", "derivations"),
    ("egraph/optimize/derivations", "derivations"),
    ("egraph/engine/egglog", "matching"), ("egraph/engine/encode", "matching"), ("egraph/engine", "e-graph"), ("egraph/rules", "rules"),
    ("lower/candidates", "candidates"), ("lower/cost", "costs"), ("egraph/extract", "extraction"),
    ("egraph/optimize/rehearsal", "rehearsal"), ("egraph/optimize/repair", "repair"), ("egraph/optimize/folding", "folding"),
    ("egraph/onnx", "ONNX"), ("egraph/optimize/reference", "reference"), ("egraph/optimize/check", "check"),
    ("runtime/profile", "profile database"), ("runtime", "runtime"), ("lower", "planning and compiling"),
    ("egraph/optimize/kernels", "planning and compiling"), ("egraph/optimize/measuring", "measuring"), ("egraph/optimize", "driver"),
)  # fmt: skip
"""Parts of the program by their files; the innermost frame of a stack that is in one of them counts."""
ROOT = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True)
class Row:
    """One search: its cost and its result."""

    model: str
    budget_seconds: float
    elapsed_seconds: float
    work_seconds: float
    stages: dict[str, float]
    """Work by stage, in seconds."""
    parts: dict[str, float]
    """Processor time of the main thread by part of the program, in seconds."""
    children_seconds: float
    """Processor time of the processes that measure and compile."""
    kernels_measured: int
    predicted_us: float
    status: str


@dataclass
class Watch:
    """Processor time of this process and of those that it started, thread by thread, sampled in short ticks."""

    work_seconds: float = 0.0
    children_seconds: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)
    _seconds: dict[tuple[int, int], float] = field(default_factory=dict)
    _is_over: threading.Event = field(default_factory=threading.Event)
    _main_at_tick: float = 0.0
    _ticks: int = 0
    _processes: list[int] = field(default_factory=list)

    def __enter__(self) -> Watch:
        self._main, self._clock = threading.main_thread(), time.pthread_getcpuclockid(threading.main_thread().ident or 0)
        self._tick(None)
        self._main_at_tick = time.clock_gettime(self._clock)
        self.work_seconds, self.children_seconds, self._thread = 0.0, 0.0, threading.Thread(target=self._run, daemon=True)
        self.parts.clear()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def now(self) -> float:
        """Return the work so far, in seconds."""
        return self.work_seconds + max(0.0, time.clock_gettime(self._clock) - self._main_at_tick)

    def _run(self) -> None:
        while not self._is_over.wait(TICK_SECONDS):
            self._tick(sys._current_frames().get(self._main.ident or 0))

    def _tick(self, frame: FrameType | None) -> None:
        own, mine = os.getpid(), threading.get_native_id()
        longest = main_seconds = 0.0
        main_now = self._main_at_tick
        for process in (own, *self._below(own)):
            for thread in _numbers(f"/proc/{process}/task"):
                if process == own and thread == mine:
                    continue  # this thread, which samples
                if process == own and thread == own:  # by the clock that ``now`` reads: the main thread computes between any two lines
                    main_now = time.clock_gettime(self._clock)
                    main_seconds = spent = main_now - self._main_at_tick
                else:
                    seconds, key = _read(f"/proc/{process}/task/{thread}/schedstat"), (process, thread)
                    spent = (int(seconds.split()[0]) / 1e9 if seconds else 0.0) - self._seconds.get(key, 0.0)
                    self._seconds[key] = self._seconds.get(key, 0.0) + spent
                if process != own:
                    self.children_seconds += spent
                longest = max(longest, spent)
        if main_seconds:
            part = part_of(frame)
            self.parts[part] = self.parts.get(part, 0.0) + main_seconds
        self.work_seconds, self._main_at_tick = self.work_seconds + longest, main_now

    def _below(self, own: int) -> list[int]:
        """Return the processes that this one started, directly or not; they are listed again every few ticks."""
        self._ticks += 1
        if self._ticks % TICKS_A_LOOK == 1:
            parents = {process: _parent(process) for process in _numbers("/proc")}
            self._processes = [process for process in parents if process != own and own in _line(process, parents)]
        return self._processes


def _parent(process: int) -> int:
    fields = _read(f"/proc/{process}/stat").rpartition(")")[2].split()
    return int(fields[1]) if fields else 0


def _line(process: int, parents: Mapping[int, int]) -> Iterator[int]:
    """Yield a process, its parent, that one's parent, and so on."""
    while process in parents:
        yield process
        process = parents[process]


def _numbers(folder: str) -> list[int]:
    try:
        return [int(name) for name in os.listdir(folder) if name.isdigit()]
    except OSError:
        return []  # it has ended


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def part_of(frame: FrameType | None) -> str:
    """Return the part of the program that a stack is in: 'imports' while a module is being loaded."""
    while frame is not None:
        name = frame.f_code.co_filename
        if "importlib" in name:
            return "imports"
        file = name.removeprefix(f"{ROOT}/")
        for folder, part in PARTS:
            if file.startswith(folder):
                return part
        frame = frame.f_back
    return "other"


@dataclass
class Staged(Progress):
    """A progress that notes how much work each stage took."""

    work: Callable[[], float] = time.process_time
    stages: dict[str, float] = field(default_factory=dict)
    kernels_measured: int = 0
    _since: float = 0.0
    _name: str = "start"

    def stage(self, name: str) -> None:
        self.turn(name)
        super().stage(name)

    def turn(self, name: str) -> None:
        """End a stage and begin another."""
        now = self.work()
        self.stages[self._name] = self.stages.get(self._name, 0.0) + now - self._since
        self._since, self._name = now, name

    def update(self, text: str) -> None:
        if text.endswith(" kernels measured"):
            self.kernels_measured = max(self.kernels_measured, int(text.split()[0]))
        super().update(text)


@contextmanager
def counting_work(watch: Watch, *, is_used: bool) -> Iterator[None]:
    """Let budgets count work instead of the clock, if ``is_used``; threads that wait for one another keep the clock."""
    if not is_used:
        yield
        return
    with mock.patch.object(time, "monotonic", watch.now):
        yield


def searched(model: Path, database: Path | None, flags: Sequence[str], *, is_work: bool) -> Row:
    """Search once in this process, which should be a new one, because its imports count, too."""
    with tempfile.TemporaryDirectory(prefix="einsat-stages-") as folder, Watch() as watch, counting_work(watch, is_used=is_work):
        started, started_elapsed = time.monotonic(), time.perf_counter()
        from egraph.optimize.arguments import parse, to_options
        from egraph.optimize.pipeline import optimize
        from runtime.garbage_collection import rare_collections

        filed = database or Path(folder) / "profile.db"
        options = to_options(parse([str(model), "-o", str(Path(folder) / "model.onnx"), "--database", str(filed), "-q", *flags]))
        progress = Staged(-1, options.budget_seconds, started, work=watch.now)
        with rare_collections():
            outcome = optimize(options, progress)
        progress.turn("end")
        predicted_us = [finalist.predicted_us for finalist in outcome.finalists if finalist.name != PLAIN]
        return Row(
            model.stem, options.budget_seconds, round(time.perf_counter() - started_elapsed, 2), round(watch.now(), 2),
            {name: round(seconds, 2) for name, seconds in progress.stages.items()},
            {name: round(seconds, 2) for name, seconds in sorted(watch.parts.items(), key=lambda item: -item[1])},
            round(watch.children_seconds, 2), progress.kernels_measured, round(min(predicted_us, default=0.0), 1), outcome.status,
        )  # fmt: skip


def page(rows: Sequence[Row], where: Mapping[str, Any]) -> str:
    """Return the rows as Markdown."""
    stages = list(dict.fromkeys(name for row in rows for name in row.stages))
    totals = {name: math.fsum(row.parts.get(name, 0.0) for row in rows) for row in rows for name in row.parts}
    least_seconds = LEAST_SHARE * math.fsum(totals.values())
    parts = [name for name in sorted(totals, key=lambda name: -totals[name]) if totals[name] >= least_seconds]

    def table(title: str, columns: Sequence[str], seconds_of: Callable[[Row], Mapping[str, float]]) -> list[str]:
        return [
            f"| {title} | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|",
            *(f"| {row.model} | {' | '.join(f'{seconds_of(row).get(name, 0.0):.1f}' for name in columns)} |" for row in rows), "",
        ]  # fmt: skip

    return "\n".join([
        "# Where the seconds of a search go", "", *opening(where, ("egglog", "onnxruntime", "ortools")),
        "Work in seconds: in every tick of 20 ms, the processor time of whichever thread had most of it.", "",
        *table("by stage", stages, lambda row: row.stages),
        "Processor time of the main thread in seconds, by the part of the program that it was in:", "",
        *table("by part", parts, lambda row: row.parts),
        "| model | budget s | elapsed s | work s | measuring and compiling processes s | kernels measured | predicted us | result |",
        "|---|---|---|---|---|---|---|---|",
        *(
            f"| {r.model} | {r.budget_seconds:g} | {r.elapsed_seconds:.1f} | {r.work_seconds:.1f} | {r.children_seconds:.1f}"
            f" | {r.kernels_measured} | {r.predicted_us:.0f} | {r.status} |" for r in rows
        ), "",
    ])  # fmt: skip


def main() -> int:
    """Search for every model, each in a process of its own; return the exit code."""
    arguments = sys.argv[1:]
    flags = arguments[arguments.index("--") + 1 :] if "--" in arguments else []
    parser = argparse.ArgumentParser(
        prog="python -m bench.stages", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", type=Path, nargs="+", metavar="MODEL.onnx")
    parser.add_argument("--database", type=Path, help="a profile database to use and to add to (default: an empty one for each model)")
    parser.add_argument("--clock", choices=("time", "work"), default="time", help="what the budget counts (default: time)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of stages.json and stages.md")
    parser.add_argument("--row", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments[: len(arguments) - len(flags) - 1] if "--" in arguments else arguments)
    if options.row:
        print(json.dumps(asdict(searched(options.models[0], options.database, flags, is_work=options.clock == "work"))))
        return 0
    rows: list[Row] = []
    for model in options.models:
        command = [sys.executable, "-m", "bench.stages", str(model), "--clock", options.clock, "--row"]
        command += ["--database", str(options.database)] if options.database else []
        result = subprocess.run([*command, "--", *flags], capture_output=True, text=True, check=False)
        if result.returncode:
            print(f"{model}: {result.stderr.strip()[-MESSAGE_CHARACTERS:]}", file=sys.stderr)
            return 1
        rows.append(Row(**json.loads(result.stdout.splitlines()[-1])))
        print(rows[-1], file=sys.stderr, flush=True)
    where = origin(0, ("python -m bench.stages", *arguments))
    text = page(rows, where)
    record(options.results, "stages", where, rows, text)
    print(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
