"""The user's cache of compiled code and of results of searches."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

ANOTHER_FOLDER = "set EINSAT_CACHE to a writable folder with free space"


def cache_folder() -> Path:
    """Return the folder for compiled files; ``EINSAT_CACHE`` names another.

    If the user's cache cannot be written, as in containers whose file system is read-only, it is a folder of the user's own among the
    temporary ones.
    """
    if override := os.environ.get("EINSAT_CACHE"):
        return Path(override)
    import platformdirs  # not needed if the artefact carries its dispatcher

    usual = Path(platformdirs.user_cache_dir("einsat"))
    if _is_writable(usual):
        return usual
    temporary = Path(tempfile.gettempdir()) / f"cache-einsat-{os.getuid()}"
    return temporary if _is_writable(temporary) and _is_private(temporary) else usual


def _is_writable(folder: Path) -> bool:
    """Return whether files can be made in a folder; a missing folder is made, for its user alone."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)


def _is_private(folder: Path) -> bool:
    """Return whether nobody else could have put code into a folder."""
    status = folder.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
