"""Match fragments to single calls of the vendor library, views as strides and epilogues as post-operations."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import TYPE_CHECKING

from egraph.tensor import Kernel
from lower.calls.launch import launch_call
from lower.calls.tiles import Matcher, library_tiles
from lower.targets import Launch, Library
from lower.targets.cpu.onednn.match import implementations, match

if TYPE_CHECKING:
    from lower.steps import StepWriter


def library_launch(writer: StepWriter, kernel: Kernel) -> Launch:
    """Return the launch of a kernel of the library."""
    return launch_call(writer, kernel, match)


LIBRARY = Library("onednn", partial(library_tiles, matcher=Matcher(implementations, lru_cache(maxsize=1 << 15)(match))), library_launch)
