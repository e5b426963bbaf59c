"""Record the answers of a GPU: ``python -m bench.gpu_results contact.jsonl [compiled.jsonl ...] [--records records.jsonl]``.

Writes bench/results/cuda_contact.json and .md: one row per network and batch, beside PyTorch and XLA in the same precision. If several
files answer a question, the later answer counts. With --add, recorded rows and peers' times that were not asked for again are kept.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.environment import commit
from bench.gpu_first_contact import COMPILED, MARK, MODES, PLAIN, PRECISIONS, XLA
from bench.record import RESULTS, record
from bench.table import geometric_mean
from runtime.profile.tables import read_lines

COLUMNS = (
    "network", "batch", "precision", "error", "kernels", "one stream", "streams", "predicted", "PyTorch", "compiled", "XLA",
    "over the best", "PyTorch tf32", "PyTorch fp16", "roofline share", "commit",
)  # fmt: skip
Answers = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Row:
    """A network at a batch; times are microseconds of a replayed graph, None where there is none."""

    network: str
    batch: int
    precision: str
    """The precision to which products of the program may round operands; peers are compared in the same precision."""
    error: float | None
    """The largest error of the launched, captured and replayed runs, relative to the largest output."""
    one_stream_us: float | None
    streams_us: dict[str, float]
    """Times by the number of streams, if steps run beside each other."""
    predicted_us: float | None
    steps: int
    pytorch_us: dict[str, float | str]
    """Times of eager PyTorch, with cuDNN in benchmark mode, by precision; a text says why there is no time."""
    compiled_us: dict[str, float | str]
    """Times of torch.compile."""
    compiled_mode: str
    xla_us: dict[str, float | str]
    roofline_share: float | None
    why: str = ""
    commit: str = ""
    """The commit at which the program was made."""

    @property
    def best_us(self) -> float | None:
        """Return the program's time on the fastest number of streams."""
        times_us = [time_us for time_us in (self.one_stream_us, *self.streams_us.values()) if time_us is not None]
        return min(times_us, default=None)

    @property
    def best_peer_us(self) -> float | None:
        """Return the time of the fastest peer that computes in the same precision."""
        times_us = (peer.get(self.precision) for peer in (self.pytorch_us, self.compiled_us, self.xla_us))
        return min((time_us for time_us in times_us if isinstance(time_us, float)), default=None)

    @property
    def over_best_peer(self) -> float | None:
        return self.best_peer_us / self.best_us if self.best_us and self.best_peer_us else None


def read(paths: Iterable[Path]) -> dict[str, Mapping[str, Any]]:
    """Return answers by their questions; an answer without a result does not replace one with a result."""
    answers: dict[str, Mapping[str, Any]] = {}
    for path in paths:
        for line in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
            if line["status"] == "ok" or answers.get(line["question"], {}).get("status") != "ok":
                answers[line["question"]] = line
    return answers


def rows(answers: Answers, commit: str) -> list[Row]:
    """Return a row for each network whose outputs were asked for; ``commit``: at which its program was made."""
    made = []
    for question in answers:
        name, _, what = question.partition(": ")
        if what != "outputs":
            continue
        model, _, precision = name.partition(MARK)
        network, _, batch = model.partition(".")
        precision = precision or PLAIN
        outputs, times = answers[question], answers.get(f"{name}: times", {})
        errors = outputs.get("relative_errors", [])
        made.append(Row(
            network, int(batch or 1), precision, max(errors, default=None), times.get("replay_us"), times.get("replay_on_streams_us", {}),
            times.get("estimated_us"), len(times.get("steps", ())), answers.get(f"{model}: PyTorch", {}).get("replay_us", {}),
            _by_precision(answers, f"{model}{COMPILED}", "replay_us"), _mode(answers, model, precision),
            _by_precision(answers, f"{model}{XLA}", "queued_us"), times.get("roofline_share", {}).get(precision),
            str(outputs.get("why", times.get("why", ""))), commit,
        ))  # fmt: skip
    return made


def recorded_rows(path: Path) -> list[Row]:
    """Return the recorded rows; rows without a commit get that of the page."""
    page_on_record = json.loads(path.read_text(encoding="utf-8"))
    return [Row(**{"commit": page_on_record["commit"], **row}) for row in page_on_record["rows"]]


def added(earlier: Iterable[Row], later: Iterable[Row]) -> list[Row]:
    """Return all rows: of two for a network, batch and precision the later one, with peers' times of both, the later ones preferred."""
    together = {(row.network, row.batch, row.precision): row for row in earlier}
    for row in later:
        key = row.network, row.batch, row.precision
        before = together.get(key, row)
        mode = row.compiled_mode if row.precision in row.compiled_us else before.compiled_mode
        together[key] = replace(
            row, pytorch_us={**before.pytorch_us, **row.pytorch_us}, compiled_us={**before.compiled_us, **row.compiled_us},
            compiled_mode=mode, xla_us={**before.xla_us, **row.xla_us},
        )  # fmt: skip
    return sorted(together.values(), key=lambda row: (PRECISIONS.index(row.precision), row.batch, row.network))


def _by_precision(answers: Answers, question: str, kind: str) -> dict[str, float | str]:
    """Return a peer's times by precision; each precision is a question of its own."""
    given = (answers.get(f"{question}, {precision}", {}) for precision in PRECISIONS)
    return {precision: time_us for answer in given for precision, time_us in answer.get(kind, {}).items()}


def _mode(answers: Answers, model: str, precision: str) -> str:
    """Return the mode in which torch.compile compiled a network."""
    return str(answers.get(f"{model}{COMPILED}, {precision}", {}).get("mode", MODES[0]))


def page(answers: Answers, measured_rows: Sequence[Row], measured: Mapping[str, int], where: Mapping[str, Any]) -> str:
    """Return the page."""
    versions = ", ".join(f"{name} {version}" for name, version in where["packages"].items())
    lines = [
        "# Networks on a GPU", "", f"`{where['command']}`, {where['date']}, commit {where['commit']},",
        f"{where['device']}; Python {where['python']}, {versions}.", "",
        f"Programs were chosen elsewhere {where['chosen']}; those in `float32` use no tensor cores, in `tf32` and `fp16` products may",
        "round their operands where that was faster, and results stay float32. Times are medians of replayed CUDA graphs in",
        "microseconds, without copies from and to the host; weights and inputs stay where the last replay left them, in the cache if they",
        "fit. PyTorch runs eagerly, captured as a graph, with cuDNN in benchmark mode; in `fp16` all of its tensors are halves.",
        "`predicted` is what the program was chosen by; `error` compares with what the recorded device computes, roundings included;",
        "PyTorch, compiled (by max-autotune, or in the mode that is named) and XLA stand in the precision of the row, and",
        "`over the best` compares with the fastest of them. `commit` is that of a row's program; peers' times that were not asked for",
        "again beside it are those of an earlier visit to such a GPU, with the same versions.",
        "",
        f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|",
    ]  # fmt: skip
    for row in measured_rows:
        error = f"{row.error:.0e}" if row.error is not None else row.why.replace("\n", " ")[:80]
        streams = ", ".join(f"{count}: {time_us:.0f}" for count, time_us in row.streams_us.items())
        peers = [_time(peer.get(row.precision)) for peer in (row.pytorch_us, row.compiled_us, row.xla_us)]
        peers[1] += "" if row.compiled_mode == MODES[0] else f" ({row.compiled_mode})"
        over = f"{row.over_best_peer:.2f}" if row.over_best_peer else ""
        share = f"{100 * row.roofline_share:.0f} %" if row.roofline_share else ""
        cells = [
            row.network, str(row.batch), row.precision, error, str(row.steps or ""), _time(row.one_stream_us), streams,
            _time(row.predicted_us), *peers, over,
            *(_time(row.pytorch_us.get(each)) if row.precision == PLAIN else "" for each in PRECISIONS[1:]), share, row.commit,
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    for precision in PRECISIONS:
        right = (row for row in measured_rows if row.precision == precision and row.error is not None)
        if compared := [row.over_best_peer for row in right if row.over_best_peer]:
            slower = sum(ratio < 1 for ratio in compared)
            what = f"in the geometric mean of {len(compared)} whose outputs were right, slower on {slower}"
            lines += ["", f"In {precision} over the fastest peer: **{geometric_mean(compared):.2f}** {what}."]
    if "rates" in answers:
        rates = answers["rates"]
        lines += ["", f"A launch inside of a replayed graph takes {rates['launch_us']:.2f} us. Bytes, read and written together, take:", ""]
        lines += ["| bytes | from memory | from the cache |", "|---|---|---|"]
        cached = {size: f"{time_us:.2f} us" for size, time_us in rates["from_cache_us"]}
        lines += [f"| {size} | {time_us:.2f} us | {cached.get(size, '')} |" for size, time_us in rates["from_memory_us"]]
    if measured:
        counted = ", ".join(f"{count} {status}" for status, count in sorted(measured.items()))
        lines += ["", f"Kernels and plans of libraries, each compared with float64 before it was timed: {counted}."]
    return "\n".join(lines) + "\n"


def _time(time_us: float | str | None) -> str:
    return "" if time_us is None else f"{time_us:.0f}" if isinstance(time_us, float) else "none"


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page and its data."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_results", description=__doc__)
    parser.add_argument("answers", nargs="+", type=Path, help="files that bench.gpu_first_contact wrote")
    parser.add_argument("--records", nargs="*", type=Path, default=[], help="kernel times that it wrote, which are counted")
    chosen_help = "the programs were chosen by kernel times that such a GPU had measured, rather than by estimates"
    parser.add_argument("--by-times", action="store_true", help=chosen_help)
    parser.add_argument("--commit", help="at which it was asked (default: this one)")
    parser.add_argument("--add", action="store_true", help="keep rows and peers' times on record that were not asked for again")
    parser.add_argument("--date", required=True, help="when it was asked: YYYY-MM-DD")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the page is written (default bench/results)")
    arguments = parser.parse_args(argv)
    answers = read(arguments.answers)
    versions = answers.get("versions", {})
    where = {
        "command": "python -m bench.gpu_first_contact FOLDER", "date": arguments.date, "commit": arguments.commit or commit(),
        "device": ", ".join(versions.get("gpus", [])), "python": versions.get("python"), "packages": versions.get("packages", {}),
        "chosen": "by the times of kernels that it had measured" if arguments.by_times else "by estimates, before it had timed anything",
        "rates": {key: value for key, value in answers.get("rates", {}).items() if key.endswith("_us")},
    }  # fmt: skip
    lines = {line for path in arguments.records for line in read_lines(path)}
    measured = Counter(json.loads(line)["status"] for line in lines)
    earlier = recorded_rows(arguments.results / "cuda_contact.json") if arguments.add else []
    all_rows = added(earlier, rows(answers, where["commit"]))
    text = page(answers, all_rows, measured, where)
    record(arguments.results, "cuda_contact", {**where, "kernels": dict(measured)}, all_rows, text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
