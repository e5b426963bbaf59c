"""Attention in blocks of rows: softmax(f(q k^T)) v as one kernel that never stores the scores."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from lower.attention.match import AttentionCall, match
from lower.attention.tiles import attention_tiles
from lower.calls.launch import launch_matched
from lower.targets import Library

LAUNCH = partial(launch_matched, match=match, recipe=AttentionCall.spec)
LIBRARY = Library("attention", attention_tiles, LAUNCH, source=Path(__file__).with_name("attention.c"))
