"""Jobs: compiled kernels in an archive, made on the machine that searches, measured on the machine that has the device.

An archive is a zip of ``jobs.jsonl``, ``files/`` and the package ``runtime/``, which measures it. The first line of ``jobs.jsonl`` is an
``Origin``, each later one a ``Job``, whose ``files`` name the members of the artefact folder that the kernel runs from. Files are stored
once, by the hash of their contents. Records are appended to a file of JSON lines as they are made, so that measuring may be interrupted at
any moment and resumed.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import time
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, field, replace
from itertools import chain, zip_longest
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any, TypeAlias, get_args

from runtime.cores import usable_cores
from runtime.devices import device
from runtime.feeds import FeedSpec
from runtime.leftovers import own_temporary_files
from runtime.measure import FROM_MEMORY, Effort, Engine, Load, Timing, Worker, measure
from runtime.profile.database import Database
from runtime.profile.tables import PLAN_MARK, Record, read_line
from runtime.profile.versions import from_memory

MANIFEST, FILES, FORMAT = "jobs.jsonl", "files", "einsat-jobs-3"
CARRIED = (".py", ".h", ".c", ".typed")
"""The files of this package that an archive carries."""
START = '''"""Measure this archive: python jobs.zip -o records.jsonl --seconds 540"""
import os, subprocess, sys, tempfile, zipfile
from pathlib import Path

archive = Path(sys.argv[0]).resolve()
with tempfile.TemporaryDirectory(prefix="einsat-") as folder, zipfile.ZipFile(archive) as zipped:
    zipped.extractall(folder, [name for name in zipped.namelist() if name.startswith("runtime/")])
    database = ["--database", str(Path(folder) / "profiles.sqlite")]
    command = [sys.executable, "-P", "-m", "runtime.profile", *database, "measure", str(archive), *sys.argv[1:]]
    paths = [folder, *filter(None, [os.environ.get("PYTHONPATH")])]
    try:
        code = subprocess.run(command, env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)}).returncode
    except KeyboardInterrupt:
        code = 130
sys.exit(code)
'''
"""The program that Python runs when it is given the archive."""
ENTRY_BYTES = 64
"""Bytes that an archive takes for a file besides its contents and its name, twice."""
LEAST_PATIENCE_SECONDS = 5.0
"""The least time that a kernel gets, in seconds, however little time is left."""
EFFORT = Effort()
Tell = Callable[[str], None]
Key: TypeAlias = tuple[str | int | float, ...]
"""The key of a record."""


@dataclass(frozen=True)
class Origin:
    """The device and the settings for which all kernels of an archive were compiled."""

    device: str
    """The name of the device in plans."""
    architecture: str
    """The architecture of generated code."""
    threads: int
    seed: int = 0
    """The seed of the drawn operands."""


@dataclass(frozen=True)
class Job:
    """A kernel to measure: the key of its time, and what to run."""

    fragment: str
    implementation: str
    generator: str
    engine: Engine
    feeds: tuple[FeedSpec, ...]
    files: Mapping[str, str] = field(default_factory=dict)
    """Hashes of the contents, by path within the artefact's folder."""

    @property
    def library(self) -> str:
        """Return the library that the kernel is of; empty for generated ones."""
        return self.implementation.partition(".")[0] if "." in self.implementation else ""

    @property
    def problem(self) -> Key:
        """Return the key that distinguishes jobs of archives that were made for one device."""
        return self.fragment, self.implementation, self.generator, self.engine

    def key(self, device: str) -> tuple[str, str, str, str]:
        """Return the key of the time on a device."""
        return from_memory(device) if self.engine == FROM_MEMORY else device, self.fragment, self.implementation, self.generator


class ArchiveWriter:
    """Writes an archive job by job; if an error or an interrupt ends it, there is no archive."""

    def __init__(self, path: Path, origin: Origin) -> None:
        self.path, self._partial = path, path.with_name(f"{path.name}.partial")
        self._lines = [json.dumps({"format": FORMAT, **asdict(origin)})]
        self._stored: set[str] = set()
        self._zip = zipfile.ZipFile(self._partial, "w", zipfile.ZIP_DEFLATED)
        self._lines_bytes = len(self._lines[0])

    @property
    def count(self) -> int:
        """Return how many jobs the archive holds."""
        return len(self._lines) - 1

    @property
    def size_bytes(self) -> int:
        """Return the largest size that the archive may have, in bytes: the manifest is counted uncompressed."""
        entries = sum(len(entry.filename) + ENTRY_BYTES for entry in self._zip.filelist)
        return sum(entry.compress_size for entry in self._zip.filelist) + 2 * entries + self._lines_bytes

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
        self._append(replace(job, files=files))

    def take(self, archive: Archive, job: Job) -> None:
        """Pack a job of another archive."""
        for digest in dict.fromkeys(job.files.values()):
            if digest not in self._stored:
                self._zip.writestr(f"{FILES}/{digest}", archive.zipped.read(f"{FILES}/{digest}"))
                self._stored.add(digest)
        self._append(job)

    def further_bytes(self, archive: Archive, job: Job) -> int:
        """Return by how many bytes a job of another archive would enlarge this one, at most."""
        new = [f"{FILES}/{digest}" for digest in set(job.files.values()) - self._stored]
        packed = sum(archive.zipped.getinfo(name).compress_size + 2 * (len(name) + ENTRY_BYTES) for name in new)
        return packed + len(_line(job))

    def _append(self, job: Job) -> None:
        self._lines.append(_line(job))
        self._lines_bytes += len(self._lines[-1]) + 1

    def add_runtime(self) -> None:
        """Pack the package that measures: ``python jobs.zip measure -o FILE`` needs nothing else of ours."""
        package = Path(__file__).resolve().parent.parent
        for path in sorted(package.rglob("*")):
            if path.is_file() and path.suffix in CARRIED and "__pycache__" not in path.parts:
                self._zip.write(path, f"{package.name}/{path.relative_to(package).as_posix()}")
        self._zip.writestr("__main__.py", START)

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
        """Open an archive; raises ValueError if it is none."""
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


def _line(job: Job) -> str:
    values = {"fragment": job.fragment, "implementation": job.implementation, "generator": job.generator, "engine": job.engine}
    return json.dumps({**values, "feeds": [astuple(spec) for spec in job.feeds], "files": dict(job.files)})


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
class Merged:
    """The result of merging archives."""

    paths: tuple[Path, ...]
    kernels: int
    repeated: int
    """Jobs that several archives had; each is kept once."""


def merge(paths: Sequence[Path], output: Path, most_bytes: float = float("inf")) -> Merged:
    """Write the jobs of several archives as one, each kernel once; as several if one would exceed a limit.

    Each archive's first jobs come first, because they are of the programs that were chosen, and time may end before the others' turn.
    """
    archives = [Archive.open(path) for path in paths]
    try:
        if len({archive.origin for archive in archives}) != 1:
            origins = "; ".join(f"{path}: {archive.origin}" for path, archive in zip(paths, archives, strict=True))
            raise ValueError(f"kernels that are merged are for one device, architecture and number of threads ({origins})")
        in_turn = zip_longest(*([(archive, job) for job in archive.jobs] for archive in archives))
        pairs = [pair for pair in chain.from_iterable(in_turn) if pair is not None]
        distinct: dict[Key, tuple[Archive, Job]] = {}
        for archive, job in pairs:
            distinct.setdefault(job.problem, (archive, job))
        waiting = list(distinct.values())
        written: list[Path] = []
        while waiting or not written:
            path = output.with_stem(f"{output.stem}-{len(written) + 1}") if written else output
            later: list[tuple[Archive, Job]] = []
            with ArchiveWriter(path, archives[0].origin) as writer:
                writer.add_runtime()
                for archive, job in waiting:
                    if writer.size_bytes + writer.further_bytes(archive, job) <= most_bytes:
                        writer.take(archive, job)
                    else:
                        later.append((archive, job))
                if waiting and not writer.count:
                    raise ValueError(f"a kernel and the package that measures it take more than {most_bytes} bytes: allow more")
            written.append(path)
            waiting = later
    finally:
        for archive in archives:
            archive.zipped.close()
    return Merged(tuple(written), len(distinct), len(pairs) - len(distinct))


@dataclass(frozen=True)
class Measured:
    """The result of measuring an archive."""

    records: tuple[Record, ...]
    """Records of this and of earlier calls, in the archive's order."""
    remaining: int
    """The number of jobs for which there was no time."""
    foreign: int
    """The number of jobs whose code was generated for another architecture, which are skipped."""
    lacking: Mapping[str, str] = field(default_factory=dict)
    """What is missing on this machine, by the library whose kernels cannot be run without it; their jobs remain."""


def measure_archive(
    archive: Path,
    database: Database,
    *,
    output: Path | None = None,
    seconds: float = float("inf"),
    effort: Effort = EFFORT,
    only: Collection[int] | None = None,
    tell: Tell = lambda text: None,
    worker: Worker | None = None,
) -> Measured:
    """Time the kernels of an archive that neither the database nor ``output`` knows yet; append each record to ``output``.

    A kernel that crashes, hangs or computes something wrong costs only its own process, and is recorded as such. ``only``: the positions of
    the jobs to consider, if not all. If the device's libraries list their plans, each plan is timed after all jobs. The fastest is recorded
    once more under the implementation's text and ``PLAN_MARK``, with the plan as its message.
    """
    opened = Archive.open(archive)
    origin = opened.origin
    if origin.threads > usable_cores():
        raise ValueError(f"the kernels of {archive} run on {origin.threads} threads, and this process may use {usable_cores()} cores")
    runs_on = device(origin.device)
    runs_code = runs_on.architecture == origin.architecture
    earlier = {record.key: record for record in resumed(output)} if output else {}
    numbers = [number for number in range(len(opened.jobs)) if only is None or number in only]
    fitting = [number for number in numbers if runs_code or not opened.jobs[number].generator]
    with opened.zipped, own_temporary_files(), worker or Worker() as measuring, appending(output) as append:
        run = _Run(opened, runs_on.key(origin.threads), earlier, database, append, tell, measuring, effort, time.monotonic() + seconds)
        for number in fitting:
            run.measure(number)
        if runs_on.lists_plans:
            for number in run.longest_first(fitting):
                run.measure_plans(number)
    if run.lacking and not run.records:
        raise ValueError(f"kernels cannot be run on this machine: {'; '.join(run.lacking.values())}")
    return Measured(tuple(run.records.values()), len(set(fitting) - run.done), len(numbers) - len(fitting), run.lacking)


@dataclass
class _Run:
    """One call that measures an archive's jobs."""

    archive: Archive
    device_key: str
    earlier: Mapping[Key, Record]
    database: Database
    append: Callable[[Record], None]
    tell: Tell
    worker: Worker
    effort: Effort
    deadline: float
    """The deadline of the monotonic clock, in seconds."""
    records: dict[Key, Record] = field(default_factory=dict)
    lacking: dict[str, str] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)
    """Jobs with nothing left to measure."""

    def measure(self, number: int, plan: str = "") -> Record | None:
        """Time a job by one of its library's plans, else by the library's own choice; None if there is no time for it."""
        job = self.archive.jobs[number]
        job = replace(job, implementation=f"{job.implementation}{PLAN_MARK}{plan}") if plan else job
        key = job.key(self.device_key)
        record = self.earlier.get(key)
        if record is None:
            record = self.database.get(*key)
            if record is None and time.monotonic() < self.deadline and job.library not in self.lacking:
                timing = self._timing(job, plan)
                record = Record(*key[:3], timing.status, timing.samples_us, timing.message, key[3]) if timing else None
            if record is not None:
                self.append(record)
                self.tell(progress(number + 1, len(self.archive.jobs), record))
        if record is not None:
            self.database.put(record)
            self.records[key] = record
            self.done.add(number)
        return record

    def longest_first(self, numbers: Iterable[int]) -> list[int]:
        """Return the measured jobs of libraries, the slowest kernels first, because a better plan gains most there."""
        times_us = {number: self.records.get(self.archive.jobs[number].key(self.device_key)) for number in numbers}
        libraries = [number for number, record in times_us.items() if record is not None and self.archive.jobs[number].library]
        return sorted(libraries, key=lambda number: -(getattr(times_us[number], "median_us", None) or 0.0))

    def measure_plans(self, number: int) -> None:
        """Time every plan that a job's library lists on this device, and record the fastest."""
        job = self.archive.jobs[number]
        fastest_key = replace(job, implementation=f"{job.implementation}{PLAN_MARK}").key(self.device_key)
        if (known := self.earlier.get(fastest_key) or self.database.get(*fastest_key)) is not None:
            self.records[fastest_key] = known
            self.database.put(known)
            return
        self.done.discard(number)
        if time.monotonic() >= self.deadline or job.library in self.lacking:
            return
        with self._unpacked(job) as folder:
            listed = self.worker.plans(self._load(job, folder, ""))
        if listed.lacks_library:
            self.lacking[job.library] = listed.message
            return
        if listed.status != "ok":
            self.tell(f"{number + 1}/{len(self.archive.jobs)}: the plans of {job.implementation} cannot be listed: {listed.message}")
        measured = {plan: self.measure(number, plan) for plan in listed.plans}
        self.done.discard(number)
        if None in measured.values():
            return
        ranked = sorted((record.median_us, plan) for plan, record in measured.items() if record and record.median_us is not None)
        self.done.add(number)
        if ranked:
            best = measured[ranked[0][1]]
            assert best is not None
            record = Record(*fastest_key[:3], "ok", best.samples_us, ranked[0][1], fastest_key[3])
            self.append(record)
            self.database.put(record)
            self.records[fastest_key] = record

    @contextmanager
    def _unpacked(self, job: Job) -> Iterator[str]:
        with tempfile.TemporaryDirectory(prefix="einsat-job-") as folder:
            self.archive.unpack(job, Path(folder))
            yield folder

    def _load(self, job: Job, folder: str, plan: str) -> Load:
        origin = self.archive.origin
        return Load(job.engine, folder, job.feeds, origin.threads, origin.seed, device=origin.device, plan=plan)

    def _timing(self, job: Job, plan: str) -> Timing | None:
        """Return the timing, the second one if a kernel hangs; None if there was no time to find out whether it hangs."""
        worker, usual_seconds = self.worker, self.worker.time_out_seconds
        with self._unpacked(job) as folder:
            for _ in range(2):  # the machine may be overloaded
                left_seconds = self.deadline - time.monotonic()
                worker.time_out_seconds = min(usual_seconds, max(LEAST_PATIENCE_SECONDS, left_seconds))
                try:
                    timing = measure(worker, self._load(job, folder, plan), self.effort)
                    is_cut_short = timing.status == "hung" and worker.time_out_seconds < usual_seconds
                finally:
                    worker.time_out_seconds = usual_seconds
                if timing.lacks_library:  # a record would keep the kernel from being used later
                    self.lacking[job.library] = timing.message
                    return None
                if timing.status != "hung" or is_cut_short:
                    break
        return None if is_cut_short else timing


def progress(number: int, count: int, record: Record) -> str:
    """Return the line that reports a measured job."""
    time_text = f"{record.median_us:.1f} us" if record.median_us is not None else record.status
    return f"{number}/{count}: {time_text}  {record.implementation}  {record.fragment}"


def resumed(output: Path) -> Iterator[Record]:
    """Yield the records of a file; a last line that a killed process left unfinished is removed."""
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
    """Append records to a file, each flushed at once; does nothing without a file."""

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
