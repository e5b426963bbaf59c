"""What the control groups (cgroups) of this process leave it, as those of a container do: processor time and memory.

What the system says of the whole machine is more than that: processors, and memory that is free.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

GROUPS, MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
"""Where Linux shows control groups, and those that this process is in."""


def processor_quota(groups: Path = GROUPS, membership: Path = MEMBERSHIP) -> float | None:
    """Return how many processors' time this process may take (cgroups v1 and v2), None if that is not limited."""
    quotas = map(_quota, _folders("cpu", groups, membership))
    return min((quota for quota in quotas if quota is not None), default=None)


def free_bytes(groups: Path = GROUPS, membership: Path = MEMBERSHIP) -> int | None:
    """Return how much more memory this process may take (cgroups v1 and v2), None if that is not limited."""
    sizes_bytes = map(_free_bytes, _folders("memory", groups, membership))
    return min((size for size in sizes_bytes if size is not None), default=None)


def _folders(controller: str, groups: Path, membership: Path) -> Iterator[Path]:
    """Yield the folders of the groups with a controller that this process is in, and of those around them.

    A container may see its group as the root, and be told its path on the machine.
    """
    try:
        lines = membership.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        root = groups / controllers
        inner = root / path.lstrip("/")
        yield from (folder for folder in (inner, *inner.parents) if folder == root or root in folder.parents)


def _quota(folder: Path) -> float | None:
    """Return the processors' time that a group may take: quota over period, in one file of version 2 or two of version 1."""
    for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        numbers = _numbers(folder, names)
        if len(numbers) == 2 and min(numbers) > 0:
            return numbers[0] / numbers[1]
    return None


def _free_bytes(folder: Path) -> int | None:
    """Return what a group's limit leaves, with files that were read and can be dropped counted as free."""
    for names, dropped in (
        (("memory.max", "memory.current"), "inactive_file"),
        (("memory.limit_in_bytes", "memory.usage_in_bytes"), "total_inactive_file"),
    ):
        numbers = _numbers(folder, names)
        if len(numbers) == 2:
            return max(0, numbers[0] - numbers[1] + _statistic(folder / "memory.stat", dropped))
    return None


def _numbers(folder: Path, names: tuple[str, ...]) -> list[int]:
    """Return the integers in files of a group; none if a file is missing or says ``max``, that there is no limit."""
    try:
        return [int(text) for name in names for text in (folder / name).read_text(encoding="utf-8").split()]
    except (OSError, ValueError):
        return []


def _statistic(path: Path, name: str) -> int:
    """Return a number of a file of names and numbers, 0 if it is not there."""
    try:
        rows = (line.split() for line in path.read_text(encoding="utf-8").splitlines())
        return next((int(row[1]) for row in rows if len(row) == 2 and row[0] == name), 0)
    except (OSError, ValueError):
        return 0
