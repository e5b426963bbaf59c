"""Measure the kernels of a job archive: made where the device is not, measured where it is.

An archive is a zip with one artefact folder a kernel and ``jobs.jsonl``, a line each:
``{"folder": "0", "fragment": "...", "implementation": "...", "feeds": [["x0", "float32", [1, 8], 2, "normal"]]}``.
"""

from __future__ import annotations

import json
import tempfile
import zipfile
from collections.abc import Iterable
from dataclasses import astuple
from pathlib import Path

from runtime.cores import usable_cores
from runtime.devices import HOST, device
from runtime.feeds import FeedSpec
from runtime.leftovers import own_temporary_files
from runtime.measure import Load, Worker, measure
from runtime.profile.database import Database, Record

MANIFEST = "jobs.jsonl"


def write_archive(archive: Path, jobs: Iterable[tuple[Path, str, str, tuple[FeedSpec, ...]]]) -> int:
    """Pack (folder, fragment, implementation, feeds) of compiled kernels; return how many."""
    lines: list[str] = []
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as zipped:
        for number, (folder, fragment, implementation, feeds) in enumerate(jobs):
            for path in sorted(folder.rglob("*")):
                if path.is_file():
                    zipped.write(path, f"{number}/{path.relative_to(folder)}")
            specs = [astuple(spec) for spec in feeds]
            lines.append(json.dumps({"folder": str(number), "fragment": fragment, "implementation": implementation, "feeds": specs}))
        zipped.writestr(MANIFEST, "\n".join(lines))
    return len(lines)


def measure_archive(archive: Path, database: Database, *, threads: int = 0) -> list[Record]:
    """Time every kernel of an archive that the database does not know yet; return their records."""
    threads = threads or usable_cores()
    key = device(HOST).key(threads)
    records: list[Record] = []
    with own_temporary_files(), tempfile.TemporaryDirectory() as place, Worker() as worker:
        try:
            with zipfile.ZipFile(archive) as zipped:
                zipped.extractall(place)
            jobs = [json.loads(line) for line in (Path(place) / MANIFEST).read_text().splitlines()]
        except (zipfile.BadZipFile, FileNotFoundError, json.JSONDecodeError) as error:
            raise ValueError(f"{archive} is not a job archive ({error})") from error
        for job in jobs:
            known = database.get(key, job["fragment"], job["implementation"])
            if known is None:
                feeds = tuple(FeedSpec(name, dtype, tuple(shape), *rest) for name, dtype, shape, *rest in job["feeds"])
                timing = measure(worker, Load("kernel", str(Path(place) / job["folder"]), feeds, threads))
                known = Record(key, job["fragment"], job["implementation"], timing.status, timing.samples_us, timing.message)
                database.put(known)
            records.append(known)
    return records
