"""Products by weights of four or eight bits, which are converted to numbers in registers."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from lower.calls.launch import launch_matched
from lower.targets import Library
from lower.targets.cpu.blocks.match import BlocksCall, blocks_tiles, match

LAUNCH = partial(launch_matched, match=match, recipe=BlocksCall.spec)
LIBRARY = Library("blocks", blocks_tiles, LAUNCH, source=Path(__file__).with_name("blocks.c"))
