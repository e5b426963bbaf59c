"""Measure an archive's kernels on the machines of a cluster of the required device, one job at a time on each."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from runtime.devices import device
from runtime.profile.database import Database
from runtime.profile.jobs import Archive, Measured, Origin, Tell, appending, measure_archive, progress, resumed
from runtime.profile.tables import Record, read_line
from runtime.runner import Cluster, JobLost

BATCH = 8
"""Kernels that a machine measures in one job: these are lost with a machine, but starting a process takes a second."""


def key_of_machine(name: str, threads: int) -> tuple[str, str]:
    """Return the device key and the architecture of the machine that this runs on."""
    runs_on = device(name)
    return runs_on.key(threads), runs_on.architecture


def measure_batch(content: bytes, numbers: Sequence[int], seconds: float) -> list[tuple[int, str]]:
    """Measure some jobs of an archive on this machine; return each one's position and record, as a line."""
    lines: list[tuple[int, str]] = []
    with tempfile.TemporaryDirectory(prefix="einsat-jobs-") as folder:
        path = Path(folder) / "jobs.zip"
        path.write_bytes(content)
        until = time.monotonic() + seconds
        for number in numbers:
            done = measure_archive(path, Database.in_memory(), only={number}, seconds=until - time.monotonic())
            lines += [(number, record.to_line()) for record in done.records]
    return lines


def measure_on_cluster(
    cluster: Cluster, archive: Path, database: Database, *,
    named_device: str = "", output: Path | None = None, seconds: float = float("inf"), batch: int = BATCH,
    tell: Tell = lambda text: None,
) -> Measured:  # fmt: skip
    """Time an archive's kernels as ``measure_archive`` does, on every machine of a cluster whose device key is ``named_device``.

    Without a name, the machines are those like the calling one. If a machine dies, another one measures what it was measuring. Raises
    ValueError if no machine is that device, JobLost if none is left.
    """
    deadline = time.monotonic() + seconds
    opened = Archive.open(archive)
    opened.zipped.close()
    origin = opened.origin
    device_key = named_device or device(origin.device).key(origin.threads)
    idle, architecture = _machines(cluster, origin, device_key)
    measured_before = {record.key: record for record in resumed(output)} if output else {}
    records: dict[int, Record] = {}
    waiting: list[int] = []
    foreign = 0
    with ExitStack() as stack:
        append = stack.enter_context(appending(output))

        def keep(number: int, record: Record, *, is_new: bool) -> None:
            records[number] = record
            database.put(record)
            if is_new:
                append(record)
                tell(progress(number + 1, len(opened.jobs), record))

        for number, job in enumerate(opened.jobs):
            key = job.key(device_key)
            if (record := measured_before.get(key)) is not None:
                keep(number, record, is_new=False)
            elif job.generator and architecture != origin.architecture:
                foreign += 1
            elif (record := database.get(*key)) is not None:
                keep(number, record, is_new=True)
            else:
                waiting.append(number)
        content = cluster.share(archive.read_bytes())
        running: dict[Any, tuple[str, list[int]]] = {}
        while running or (waiting and time.monotonic() < deadline):
            while waiting and idle and time.monotonic() < deadline:
                numbers, waiting = waiting[:batch], waiting[batch:]
                node = idle.pop()
                running[cluster.run_on(node, measure_batch, (content, numbers, deadline - time.monotonic()))] = node, numbers
            if not running:
                raise JobLost(f"no machine is left of {device_key!r}; {len(records)} kernels are measured", fix="the same command goes on")
            reference = cluster.first(list(running))
            node, numbers = running.pop(reference)
            try:
                lines = cluster.result(reference)
                idle.append(node)
            except JobLost:
                tell(f"a machine was lost; {len(numbers)} kernels are measured elsewhere")
                lines = []
                waiting = numbers + waiting
            for number, line in lines:
                row = read_line(line)
                assert isinstance(row, Record)
                keep(number, row, is_new=True)
    ordered = tuple(records[number] for number in sorted(records))
    return Measured(ordered, len(opened.jobs) - len(records) - foreign, foreign)


def _machines(cluster: Cluster, origin: Origin, device_key: str) -> tuple[list[str], str]:
    """Return the machines that are the device, and the architecture of their generated code."""
    references = {node: cluster.run_on(node, key_of_machine, (origin.device, origin.threads)) for node in cluster.nodes()}
    keys: dict[str, tuple[str, str]] = {}
    for node, reference in references.items():
        with suppress(JobLost):
            keys[node] = cluster.result(reference)
    fitting = [node for node, (key, _) in keys.items() if key == device_key]
    if not fitting:
        other_keys = "; ".join(sorted({key for key, _ in keys.values()}))
        raise ValueError(f"no machine of the cluster is {device_key!r}: there are {other_keys} (--device KEY names one)")
    return fitting, keys[fitting[0]][1]
