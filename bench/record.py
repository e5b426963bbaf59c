"""Record rows: in a JSON file, and on a page that begins with the environment of the measurement."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.environment import commit, environment

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

RESULTS = Path(__file__).parent / "results"


def origin(threads: int, command: Sequence[str], **more: object) -> dict[str, Any]:
    """Return the origin of rows: the environment, the commit, and other values that are the same for all of them."""
    return {**environment(threads, command), "commit": commit(), **more}


def opening(where: Mapping[str, Any], packages: Sequence[str]) -> tuple[str, str, str]:
    """Return a page's first lines: the command, the machine with the versions of these packages, and an empty line."""
    versions = "".join(f", {name} {where['versions'][name]}" for name in packages if name in where["versions"])
    machine = f"{where['cpu']}, {where['cores']} cores, Python {where['python']}{versions}"
    return f"`{where['command']}`, {where['date']}, commit {where['commit']},", f"{machine}.", ""


def record(folder: Path, name: str, where: Mapping[str, Any], rows: Sequence[DataclassInstance], page: str) -> None:
    """Write NAME.json and NAME.md."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps({**where, "rows": [asdict(row) for row in rows]}, indent=1) + "\n")
    (folder / f"{name}.md").write_text(page)
