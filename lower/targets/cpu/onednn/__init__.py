"""Match fragments to single calls of the vendor library, views as strides and epilogues as post-operations."""

from lower.targets import Library
from lower.targets.cpu.onednn.launch import library_launch
from lower.targets.cpu.onednn.tiles import library_tiles

LIBRARY = Library("onednn", library_tiles, library_launch)
