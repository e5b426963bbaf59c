"""Jobs: compiled kernels in an archive, made where a search is, measured where the device is.

An archive is a zip of ``jobs.jsonl`` and ``files/``. The first line of ``jobs.jsonl`` is an ``Origin``, each later one a
``Job``, whose ``files`` name the members of the artefact folder that the kernel runs from. Files are stored once, by the
hash of their contents. Records are appended to a file of JSON lines as they are made, so that measuring may end at any
moment and be resumed.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import time
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, astuple, dataclass, field
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any, get_args

from runtime.cores import usable_cores
from runtime.devices import device
from runtime.feeds import FeedSpec
from runtime.leftovers import own_temporary_files
from runtime.measure import FROM_MEMORY, Effort, Engine, Load, Timing, Worker, measure
from runtime.profile.database import Database
from runtime.profile.tables import Record, read_line
from runtime.profile.versions import from_memory

MANIFEST, FILES, FORMAT = "jobs.jsonl", "files", "einsat-jobs-1"
LEAST_PATIENCE_SECONDS = 5.0
"""Seconds that a kernel gets at least, however little time is left."""
EFFORT = Effort()
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Origin:
    """What all kernels of an archive were compiled for."""

    device: str
    """The name that plans know it by."""
    architecture: str
    """What generated code runs on."""
    threads: int
    seed: int = 0
    """Of the operands that are drawn."""


@dataclass(frozen=True)
class Job:
    """A kernel to measure: what its time is filed under, and what to run."""

    fragment: str
    implementation: str
    generator: str
    engine: Engine
    feeds: tuple[FeedSpec, ...]
    files: Mapping[str, str] = field(default_factory=dict)
    """Hashes of the contents, by path within the artefact's folder."""

    def key(self, device: str) -> tuple[str, str, str, str]:
        """Return what the time is filed under on a device."""
        return from_memory(device) if self.engine == FROM_MEMORY else device, self.fragment, self.implementation, self.generator


class ArchiveWriter:
    """Writes an archive job by job; whole, or not at all where an error or an interrupt ends it."""

    def __init__(self, path: Path, origin: Origin) -> None:
        self.path, self._partial = path, path.with_name(f"{path.name}.partial")
        self._lines = [json.dumps({"format": FORMAT, **asdict(origin)})]
        self._stored: set[str] = set()
        self._zip = zipfile.ZipFile(self._partial, "w", zipfile.ZIP_DEFLATED)

    def add(self, folder: Path, job: Job) -> None:
        """Pack a compiled kernel's folder."""
        files: dict[str, str] = {}
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()[:32]
            if digest not in self._stored:
                self._zip.write(path, f"{FILES}/{digest}")
                self._stored.add(digest)
            files[path.relative_to(folder).as_posix()] = digest
        specs = [astuple(spec) for spec in job.feeds]
        values = {"fragment": job.fragment, "implementation": job.implementation, "generator": job.generator, "engine": job.engine}
        self._lines.append(json.dumps({**values, "feeds": specs, "files": files}))

    def __enter__(self) -> ArchiveWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        try:
            if error is None:
                self._zip.writestr(MANIFEST, "".join(line + "\n" for line in self._lines))
            self._zip.close()
            if error is None:
                self._partial.replace(self.path)
        finally:
            self._partial.unlink(missing_ok=True)


@dataclass(frozen=True)
class Archive:
    """An archive that is open for reading."""

    origin: Origin
    jobs: tuple[Job, ...]
    zipped: zipfile.ZipFile

    @staticmethod
    def open(path: Path) -> Archive:
        """Open an archive; raises ValueError where it is none."""
        try:
            zipped = zipfile.ZipFile(path)
            first, *lines = map(json.loads, zipped.read(MANIFEST).decode().splitlines())
            if first.pop("format", None) != FORMAT:
                raise ValueError(f"its format is not {FORMAT}")
            return Archive(Origin(**first), tuple(map(_job, lines)), zipped)
        except (OSError, zipfile.BadZipFile, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} is not a job archive ({error})") from error

    def unpack(self, job: Job, folder: Path) -> None:
        """Write the folder that a kernel runs from."""
        for name, digest in job.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with self.zipped.open(f"{FILES}/{digest}") as source, path.open("wb") as target:
                shutil.copyfileobj(source, target)


def _job(raw: Mapping[str, Any]) -> Job:
    texts = [str(raw[name]) for name in ("fragment", "implementation", "generator")]
    if raw["engine"] not in get_args(Engine):
        raise ValueError(f"there is no engine {raw['engine']!r}")
    files = {str(name): str(digest) for name, digest in raw["files"].items()}
    if any(".." in PurePosixPath(name).parts or PurePosixPath(name).is_absolute() for name in files):
        raise ValueError("a file lies outside of its folder")
    feeds = tuple(FeedSpec(name, dtype, tuple(shape), *fields) for name, dtype, shape, *fields in raw["feeds"])
    return Job(texts[0], texts[1], texts[2], raw["engine"], feeds, files)


@dataclass(frozen=True)
class Measured:
    """The result of measuring an archive."""

    records: tuple[Record, ...]
    """Of this and of earlier calls, in the archive's order."""
    remaining: int
    """Jobs that there was no time for."""
    foreign: int
    """Jobs whose code was generated for another architecture: they are left out."""


def measure_archive(
    archive: Path,
    database: Database,
    *,
    output: Path | None = None,
    seconds: float = float("inf"),
    effort: Effort = EFFORT,
    only: Collection[int] | None = None,
    tell: Tell = lambda text: None,
) -> Measured:
    """Time the kernels of an archive that neither the database nor ``output`` knows yet; append each record to ``output``.

    A kernel that crashes, hangs or computes something wrong costs its own process only, and is recorded as such. ``only``: the
    positions of the jobs to consider, if not all.
    """
    deadline = time.monotonic() + seconds
    opened = Archive.open(archive)
    origin = opened.origin
    if origin.threads > usable_cores():
        raise ValueError(f"the kernels of {archive} run on {origin.threads} threads, and this process may use {usable_cores()} cores")
    runs_on = device(origin.device)
    device_key, runs_code = runs_on.key(origin.threads), runs_on.architecture == origin.architecture
    earlier = {record.key: record for record in resumed(output)} if output else {}
    records: list[Record] = []
    remaining = foreign = 0
    with opened.zipped, own_temporary_files(), Worker() as worker, appending(output) as append:
        for number, job in enumerate(opened.jobs, 1):
            if only is not None and number - 1 not in only:
                continue
            key = job.key(device_key)
            record = earlier.get(key)
            if record is None and (runs_code or not job.generator):
                record = database.get(*key)
                if record is None and time.monotonic() < deadline:
                    timing = _timing(opened, job, worker, effort, deadline)
                    record = Record(*key[:3], timing.status, timing.samples_us, timing.message, key[3]) if timing else None
                if record is not None:
                    append(record)
                    tell(progress(number, len(opened.jobs), record))
                remaining += record is None
            elif record is None:
                foreign += 1
            if record is not None:
                database.put(record)
                records.append(record)
    return Measured(tuple(records), remaining, foreign)


def progress(number: int, count: int, record: Record) -> str:
    """Return the line that reports a measured job."""
    time_text = f"{record.median_us:.1f} us" if record.median_us is not None else record.status
    return f"{number}/{count}: {time_text}  {record.implementation}  {record.fragment}"


def _timing(archive: Archive, job: Job, worker: Worker, effort: Effort, deadline: float) -> Timing | None:
    """Return the timing, of a kernel that hangs the second one; None where there was no time to find out whether it hangs."""
    usual_seconds = worker.time_out_seconds
    with tempfile.TemporaryDirectory(prefix="einsat-job-") as folder:
        archive.unpack(job, Path(folder))
        load = Load(job.engine, folder, job.feeds, archive.origin.threads, archive.origin.seed)
        for _ in range(2):  # the machine may be overloaded
            left_seconds = deadline - time.monotonic()
            worker.time_out_seconds = min(usual_seconds, max(LEAST_PATIENCE_SECONDS, left_seconds))
            try:
                timing = measure(worker, load, effort)
                is_cut_short = timing.status == "hung" and worker.time_out_seconds < usual_seconds
            finally:
                worker.time_out_seconds = usual_seconds
            if timing.lacks_library:  # recorded, it would keep every kernel from being used later
                raise ValueError(f"kernels cannot be run on this machine: {timing.message}")
            if timing.status != "hung" or is_cut_short:
                break
    return None if is_cut_short else timing


def resumed(output: Path) -> Iterator[Record]:
    """Yield the records of a file; a last line that a killed process left unfinished is cut off."""
    if not output.exists():
        return
    text = output.read_text(encoding="utf-8")
    complete = text[: text.rfind("\n") + 1]
    for number, line in enumerate(complete.splitlines(), 1):
        try:
            row = read_line(line)
        except ValueError as error:
            raise ValueError(f"{output}, line {number}, is no record ({error}): name another file to write to") from error
        if isinstance(row, Record):
            yield row
    if len(complete) < len(text):
        output.write_text(complete, encoding="utf-8")


class appending:
    """Append records to a file, each written out at once; to none where there is no file."""

    def __init__(self, output: Path | None) -> None:
        self._file = output.open("a", encoding="utf-8") if output else None

    def __enter__(self) -> Callable[[Record], None]:
        return self._append

    def __exit__(self, *_: object) -> None:
        if self._file:
            self._file.close()

    def _append(self, record: Record) -> None:
        if self._file:
            self._file.write(record.to_line() + "\n")
            self._file.flush()


def count_statuses(records: Iterable[Record]) -> str:
    """Return how many records have no time, by status: ``2 failed, 1 hung``."""
    statuses = [record.status for record in records if record.status != "ok"]
    return ", ".join(f"{statuses.count(status)} {status}" for status in sorted(set(statuses)))
