"""Constants in the layout that a C function reads: another function of its library packs each once, when a program is loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias
from weakref import WeakValueDictionary

import numpy as np

from runtime.devices.cpu.allocation import Allocator

KIND = "packed constants"
"""The key of these constants in a builder's contexts."""
Key: TypeAlias = tuple[int | None, str, tuple[int, ...], tuple[int, ...], str, str]
"""Where a constant lies, its element type, its window's shape and strides, and the library and the function that pack it."""


@dataclass(frozen=True, eq=False)
class Packed:
    """A packed constant. ``source`` keeps the original's memory from being reused."""

    array: np.ndarray
    source: np.ndarray


_shared: WeakValueDictionary[Key, Packed] = WeakValueDictionary()
"""Constants that the sessions of this process have packed; sessions that map the same weights share them."""


class PackedConstants:
    """The packed constants of one program."""

    def __init__(self) -> None:
        self._packed: dict[Key, Packed] = {}
        self._allocator = Allocator()  # they may outlive the arena of the program that packed them

    @property
    def constants(self) -> Sequence[np.ndarray]:
        """Return the packed copies."""
        return [packed.array for packed in self._packed.values()]

    def add(self, key: Key, source: np.ndarray, size_bytes: int, pack: Callable[[np.ndarray], None]) -> np.ndarray:
        """Return the packed copy of a constant; ``pack`` makes it if no session has it."""
        packed = self._packed.get(key) or _shared.get(key)
        if packed is None:
            packed = Packed(self._allocator.allocate(size_bytes), source)
            pack(packed.array)
            packed = _shared.setdefault(key, packed)
        self._packed[key] = packed
        return packed.array

    def finish(self) -> None:
        """Do nothing: each copy is made when it is requested."""

    def close(self) -> None:
        """Release the copies."""
        self._packed.clear()
