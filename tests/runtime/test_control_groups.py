"""Test the limits that control groups set a process, with files as Linux and containers write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from egraph.optimize.race import available_bytes
from runtime.control_groups import free_bytes, processor_quota


def written(folder: Path, membership: str, files: dict[str, str]) -> tuple[Path, Path]:
    """Write files of control groups and the membership of a process; return both paths."""
    for name, text in files.items():
        (folder / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "groups" / name).write_text(text + "\n")
    (folder / "cgroup").write_text(membership + "\n")
    return folder / "groups", folder / "cgroup"


@pytest.mark.parametrize(
    ("membership", "files", "processors"),
    [
        ("0::/", {"cpu.max": "150000 100000"}, 1.5),
        ("0::/", {"cpu.max": "max 100000"}, None),
        ("0::/", {}, None),
        ("0::/", {"cpu.max": "a text"}, None),
        ("0::/a/b", {"a/b/cpu.max": "max 100000", "a/cpu.max": "200000 100000", "cpu.max": "300000 100000"}, 2.0),
        ("0::/of/the/machine", {"cpu.max": "50000 100000"}, 0.5),
        ("0::/../..", {"cpu.max": "50000 100000"}, 0.5),
        ("4:cpu,cpuacct:/pod", {"cpu,cpuacct/pod/cpu.cfs_quota_us": "250000", "cpu,cpuacct/pod/cpu.cfs_period_us": "100000"}, 2.5),
        ("4:cpu:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ("4:cpuset:/\n3:memory:/", {"cpuset/cpu.max": "100000 100000"}, None),
    ],
)
def test_the_quota_of_a_container_is_read(tmp_path: Path, membership: str, files: dict[str, str], processors: float | None) -> None:
    for name, text in files.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(text + "\n")
    (tmp_path / "cgroup").write_text(membership + "\n")
    assert processor_quota(tmp_path / "groups", tmp_path / "cgroup") == processors
    assert processor_quota(tmp_path / "groups", tmp_path / "missing") is None


@pytest.mark.parametrize(
    ("membership", "files", "size_bytes"),
    [
        ("0::/", {"memory.max": "4000", "memory.current": "1500", "memory.stat": "anon 1000\ninactive_file 300"}, 2800),
        ("0::/", {"memory.max": "4000", "memory.current": "1500"}, 2500),
        ("0::/", {"memory.max": "max", "memory.current": "1500"}, None),
        ("0::/a", {"a/memory.max": "max", "memory.max": "4000", "memory.current": "5000"}, 0),
        (
            "9:memory:/pod",
            {
                "memory/pod/memory.limit_in_bytes": "4000", "memory/pod/memory.usage_in_bytes": "1000",
                "memory/pod/memory.stat": "inactive_file 7\ntotal_inactive_file 200", "memory/memory.limit_in_bytes": "9223372036854771712",
                "memory/memory.usage_in_bytes": "5000",
            },
            3200,
        ),
        ("9:cpu:/", {"cpu/memory.max": "4000", "cpu/memory.current": "1500"}, None),
    ],
)  # fmt: skip
def test_memory_that_a_container_may_still_take_is_read(
    tmp_path: Path, membership: str, files: dict[str, str], size_bytes: int | None
) -> None:
    assert free_bytes(*written(tmp_path, membership, files)) == size_bytes


def test_contenders_of_a_race_stay_within_the_memory_of_their_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("egraph.optimize.race.free_bytes", lambda: None)
    assert available_bytes() > 1 << 20
    monkeypatch.setattr("egraph.optimize.race.free_bytes", lambda: 1 << 20)
    assert available_bytes() == 1 << 20
