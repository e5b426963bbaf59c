"""The user's cache of compiled code and of results of searches."""

from __future__ import annotations

import os
from pathlib import Path

ANOTHER_FOLDER = "set EINSAT_CACHE to a writable folder with free space"


def cache_folder() -> Path:
    """Return the folder for compiled files; ``EINSAT_CACHE`` names another."""
    if override := os.environ.get("EINSAT_CACHE"):
        return Path(override)
    import platformdirs  # not needed where the artefact carries its dispatcher

    return Path(platformdirs.user_cache_dir("einsat"))
