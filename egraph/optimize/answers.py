"""Keep what the original model answered when it was first run: the check begins with the same inputs, and need not ask again."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


class Answers:
    """The outputs of one run, found again by its inputs."""

    def __init__(self) -> None:
        self._digest, self._outputs = "", ()  # type: tuple[str, Sequence[Any]]

    def keep(self, feeds: Mapping[str, Any], outputs: Sequence[Any]) -> None:
        """Take what a run gave."""
        self._digest, self._outputs = _digest(feeds), outputs

    def of(self, feeds: Mapping[str, Any]) -> Sequence[Any] | None:
        """Return the outputs for these inputs, None where they are not known."""
        return self._outputs if self._digest and self._digest == _digest(feeds) else None


def _digest(feeds: Mapping[str, Any]) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(feeds.items()):
        array = np.asarray(value)
        digest.update(f"{name} {array.dtype} {array.shape}:".encode())
        digest.update(repr(array.tolist()).encode() if array.dtype.hasobject else np.ascontiguousarray(array).view(np.uint8).data)
    return digest.hexdigest()
