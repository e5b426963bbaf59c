"""Folders that last as long as their process, and the removal of those that a killed process left behind.

Such a folder holds a file that its process keeps locked. The system releases the lock when the process ends, in whatever way, so a reused
process number cannot mislead. A process that finds the lock free, on the machine that it was taken on, removes the folder. Folders of
another user or machine, and those without such a file, are left alone.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

OWNER = ".owner"
PREFIX = "einsat-"
"""The prefix of the names of temporary folders."""


def machine() -> dict[str, str]:
    """Return what identifies machines that may share a disk; ``boot`` is the same in all containers of one."""
    return {
        "node": platform.node(),
        "id": _line(Path("/etc/machine-id")),
        "boot": _line(Path("/proc/sys/kernel/random/boot_id")),
    }


@contextmanager
def owned_folder(parent: Path, prefix: str, suffix: str = "") -> Iterator[Path]:
    """Yield a new folder, and remove it afterwards; if this process is killed, ``remove_abandoned`` removes it later."""
    folder = Path(tempfile.mkdtemp(prefix=prefix, suffix=suffix, dir=parent))
    lock: int | None = None
    try:
        with suppress(OSError):  # without locks on this disk, it stays if the process is killed
            lock = _lock_new(folder)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


@contextmanager
def own_temporary_files() -> Iterator[None]:
    """Keep all temporary files of this process, and of those that it starts, in one owned folder; remove abandoned ones."""
    usual, variable = tempfile.tempdir, os.environ.get("TMPDIR")
    parent = Path(tempfile.gettempdir())
    remove_abandoned(parent, f"{PREFIX}*")
    with ExitStack() as stack:
        with suppress(OSError):  # later uses of temporary files report what is wrong with the disk
            folder = stack.enter_context(owned_folder(parent, PREFIX))
            tempfile.tempdir = os.environ["TMPDIR"] = str(folder)
        try:
            yield
        finally:
            tempfile.tempdir = usual
            if variable is None:
                os.environ.pop("TMPDIR", None)
            else:
                os.environ["TMPDIR"] = variable


def remove_abandoned(parent: Path, pattern: str) -> list[Path]:
    """Remove the folders in ``parent`` whose process is gone; return them."""
    removed = []
    for folder in sorted(parent.glob(pattern)):
        with suppress(OSError, ValueError):  # a folder that cannot be read or locked is not ours to remove
            if not folder.is_symlink() and folder.stat().st_uid == os.getuid() and _remove(folder):
                removed.append(folder)
    return removed


def _lock_new(folder: Path) -> int:
    """Create the file already locked, so that no process sees it unlocked."""
    unnamed = folder / f"{OWNER}.new"
    lock = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(lock, json.dumps(machine()).encode())
        unnamed.rename(folder / OWNER)
    except BaseException:
        os.close(lock)
        unnamed.unlink(missing_ok=True)
        raise
    return lock


def _remove(folder: Path) -> bool:
    path = folder / OWNER
    lock = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if not _is_of_this_machine(json.loads(path.read_text())):
            return False
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises if its process lives
        if os.fstat(lock).st_ino != path.stat().st_ino:
            return False  # another process removed it meanwhile
        shutil.rmtree(folder, ignore_errors=True)
        return not folder.exists()
    finally:
        os.close(lock)


def _is_of_this_machine(owner: dict[str, str]) -> bool:
    """Return whether a lock can be trusted: the same system runs, or this machine was started again since."""
    present = machine()
    is_same_run = bool(present["boot"]) and owner.get("boot") == present["boot"]
    return is_same_run or (bool(present["id"]) and (owner.get("id"), owner.get("node")) == (present["id"], present["node"]))


def _line(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
