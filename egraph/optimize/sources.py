"""Name the state of this project's own sources: what was kept for other sources is made anew."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


@cache
def sources_digest(folders: tuple[str, ...], suffixes: tuple[str, ...] = (".py",)) -> str:
    """Return a hash of the files below some folders of the project that end in these ways, names and contents."""
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted(path for path in (ROOT / folder).rglob("*.*") if path.suffix in suffixes):
            text = path.read_bytes()
            digest.update(f"{path.relative_to(ROOT).as_posix()} {len(text)}:".encode() + text)
    return digest.hexdigest()[:32]
