"""The results of a campaign, as text and as files."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from bench.machine import about, sentence
from bench.mutation.campaign import Tally
from bench.mutation.judging import FEW

FATES = ("mutants", "false", "rejected", "slow", "proved")


def table(tally: Tally, seconds: float) -> str:
    """Return the fates of the mutants, in a few lines."""
    lines = [
        f"{tally.mutants} mutants of {tally.mutated} rules: {tally.rejected} rejected, {tally.slow} given up, {tally.proved} proved",
        f"{tally.false} of all differ from the reference on {FEW} random instances or fewer",
        f"{len(tally.wrong)} of the proved ones differ from the reference, on {tally.compared} random instances",
        f"{seconds:.0f} s of processor time", *tally.wrong,
    ]  # fmt: skip
    return "\n".join(lines)


def write(folder: Path, tally: Tally, seconds: float, command: str) -> None:
    """Write mutation.json and mutation.md."""
    machine = about(command)
    (folder / "mutation.json").write_text(json.dumps({**machine, "cpu_seconds": round(seconds, 1), **asdict(tally)}, indent=1) + "\n")
    rows = "\n".join(f"| {change} | {' | '.join(str(row[fate]) for fate in FATES)} |" for change, row in tally.by_change.items())
    proved = "\n".join(f"* `{name}`" for name in tally.proved_names)
    left = f" Rules without a mutant: {', '.join(f'`{name}`' for name in tally.without)}." if tally.without else ""
    (folder / "mutation.md").write_text(
        f"# Mutated rules\n\n{table(tally, seconds)}.\n\n{sentence(machine)}\n\n"
        f"The {tally.rules} rules can be changed in {tally.sites} ways. Of those looked at, {tally.stillborn} are no rule, or the same "
        f"rule, and {tally.idle} fit no random instance.{left}\n\n"
        f"| change | mutants | false | rejected | given up | proved |\n|---|---|---|---|---|---|\n{rows}\n\n"
        f"*false*: refuted by the reference on a few random instances, before the proof. "
        f"A proved mutant says something that is true too: an equal guard, a change that means the same.\n\n{proved}\n"
    )
