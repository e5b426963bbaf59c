"""The verdicts on corpora, as text and as files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from bench.corpora.judge import OPEN, Judgement
from bench.machine import about, sentence

HEADS = ("corpus", "entries", "different", "decided", "proved", "where well-typed", "under a precondition", "refuted", "agree",
         "median", "90 %", "longest", "all")  # fmt: skip
COLUMNS = ("proved", "proved where the right side is well-typed", "proved under a precondition", "refuted")


@dataclass
class Found:
    """The verdicts on a corpus, or on a part of one, as far as it was judged. ``entries``: how many there are to judge."""

    name: str
    entries: int
    judged: list[Judgement] = field(default_factory=list)

    @property
    def counts(self) -> dict[str, int]:
        """Return how often each verdict was found."""
        return dict(sorted(Counter(each.decision for each in self.judged).items()))

    @property
    def decided(self) -> int:
        return sum(each.decision not in OPEN for each in self.judged)

    @property
    def times(self) -> list[float]:
        """Return the processor time of every entry that repeats no other, in seconds, the shortest first."""
        return sorted(each.seconds for each in self.judged if not each.repeats)

    @property
    def agreeing(self) -> tuple[int, int]:
        """Return how many verdicts are the corpus's own, and how many can be compared."""
        compared = [each for each in self.judged if each.agrees is not None]
        return sum(bool(each.agrees) for each in compared), len(compared)

    def parts(self) -> Iterator[Found]:
        """Yield the sections of the corpus, in their order; the whole corpus if it has none."""
        sections = dict.fromkeys(each.entry.section for each in self.judged)
        if len(sections) < 2:
            yield self
            return
        for section in sections:
            entries = [each for each in self.judged if each.entry.section == section]
            yield Found(f"{self.name}: {section}", len(entries), entries)


def summary(result: Found, seconds: float) -> str:
    """Return the results of a corpus in a few lines."""
    counts = ", ".join(f"{count} {decision}" for decision, count in result.counts.items())
    agreeing, compared = result.agreeing
    guarded = sum(bool(each.guard) for each in result.judged if each.decision == "refuted")
    times = result.times or [0.0]
    stopped = "" if len(result.judged) == result.entries else f" of {result.entries}, then interrupted"
    return (
        f"\n{len(result.judged)} entries{stopped}, {len(result.times)} of them different: {counts}\n"
        f"{agreeing} of {compared} verdicts agree with the corpus; for {guarded} refuted entries a precondition was found\n"
        f"{seconds:.1f} s of processor time; a different entry: median {_milliseconds(median(times))}, "
        f"nine in ten within {_milliseconds(_within(times, 0.9))}, the longest {_milliseconds(times[-1])}"
    )


def write(folder: Path, results: Sequence[Found], seconds: float, command: str) -> None:
    """Write corpora.json and corpora.md."""
    machine = about(command)
    corpora = [
        {"corpus": each.name, "entries": each.entries, "verdicts": each.counts, "judged": [*map(_judgement_row, each.judged)]}
        for each in results
    ]  # fmt: skip
    text = json.dumps({**machine, "cpu_seconds": round(seconds, 1), "corpora": corpora}, indent=1)
    (folder / "corpora.json").write_text(text.replace("\n     ", " ").replace("\n    }", "}") + "\n")  # one entry per line
    rows = "\n".join(_row(part) for each in results for part in each.parts())
    judged = [each for corpus in results for each in corpus.judged]
    left = "".join(f"* `{each.entry.name}`: {each.decision}: {_line(each.reason)}\n" for each in judged if each.decision in OPEN)
    wrong = "".join(f"* `{each.entry.name}`: {each.decision}, there {each.entry.claim}\n" for each in judged if each.agrees is False)
    stopped = "".join(
        f"Interrupted after {len(each.judged)} of the {each.entries} entries of {each.name}.\n\n"
        for each in results if len(each.judged) < each.entries
    )  # fmt: skip
    (folder / "corpora.md").write_text(
        f"# Rules of other systems\n\n{sentence(machine)} {seconds:.0f} s of processor time.\n\n{stopped}"
        f"| {' | '.join(HEADS)} |\n{'|---' * len(HEADS)}|\n{rows}\n\n"
        "*different*: without the entries that say what an earlier one says, up to the names of variables. *decided*: proved or refuted. "
        "*where well-typed*: proved where the right side has the left side's type, which those systems check before they apply a rule; "
        "*under a precondition*: proved under one that the statement leaves out and that was found. *agree*: verdicts that are the "
        "corpus's own, of those that can be compared. Times are of the processor and of different entries: random tests, proof, and the "
        "search for a precondition of what is false.\n"
        + (f"\n## Not decided\n\n{left}" if left else "") + (f"\n## Not as the corpus says\n\n{wrong}" if wrong else "")
    )  # fmt: skip


def _row(result: Found) -> str:
    times, counts = result.times, result.counts
    agreeing, compared = result.agreeing
    spent = (_milliseconds(median(times)), _milliseconds(_within(times, 0.9)), _milliseconds(times[-1])) if times else ("-",) * 3
    cells = (
        result.name, len(result.judged), len(times), result.decided, *(counts.get(column, 0) for column in COLUMNS),
        f"{agreeing} of {compared}", *spent, f"{sum(each.seconds for each in result.judged):.1f} s",
    )  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


def _judgement_row(judgement: Judgement) -> dict[str, object]:
    fields = {
        "id": judgement.entry.name, "verdict": judgement.decision, "corpus_verdict": judgement.entry.claim, "agrees": judgement.agrees,
        "guard": judgement.guard, "repeats": judgement.repeats, "seconds": round(judgement.seconds, 4),
    }  # fmt: skip
    return {name: value for name, value in fields.items() if value not in ("", None)}


def _within(times: Sequence[float], share: float) -> float:
    """Return the time within which a fraction ``share`` of the sorted times lies."""
    return times[min(len(times) - 1, int(share * len(times)))]


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.0f} ms" if seconds < 9.995 else f"{seconds:.0f} s"


def _line(text: str) -> str:
    return (text.splitlines() or [""])[0][:160]
