"""Write large results past the caches, and prefetch what is read next: both as LLVM functions that are inlined.

A line that is stored as a whole need not be read first; the processor only knows with stores that bypass the caches. They
pay where the result would not stay in the last-level cache until it is read.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import Any

import tvm
from tvm import tirx

from egraph.tensor.expr.index import Index, Iterator
from egraph.tensor.expr.laws import coefficient, iterators_of

STREAMED_BYTES = 16 << 20
"""Results from which streaming pays, their reader included: with 32 MiB of last-level cache a copy of a copy takes
1.1 times as long without at 16 MiB and 1.3 times from 24 MiB on, but 0.85 times at 12 MiB."""
LINE_ELEMENTS = 16
"""Elements of float32 in a cache line, which is the unit of streaming."""
STEPS_AHEAD = 3
"""Steps, of the innermost loop outside of the vectors, by which data is prefetched; with one, sums of slices take 1.1 times as long."""
NEAR_BYTES = 256 << 10
"""Data prefetched this many bytes ago lies in the last-level cache by now, and is prefetched from there once more."""
FAR_BYTES = STREAMED_BYTES // 2
"""Data prefetched this many bytes ago lies in no cache any more."""
ELEMENT_BYTES = 4
_MACHINES = frozenset({"x86_64", "AMD64", "i386", "i686"})
_FUNCTIONS = """
declare void @llvm.x86.sse.sfence()
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)

define linkonce_odr void @einsat_stream(ptr %place, <16 x float> %value) alwaysinline {
  %address = ptrtoint ptr %place to i64
  %rest = and i64 %address, 63
  %whole = icmp eq i64 %rest, 0
  br i1 %whole, label %streamed, label %stored
streamed:
  store <16 x float> %value, ptr %place, align 64, !nontemporal !0
  ret void
stored:
  store <16 x float> %value, ptr %place, align 4
  ret void
}

define linkonce_odr void @einsat_finish() alwaysinline {
  call void @llvm.x86.sse.sfence()
  ret void
}

define linkonce_odr void @einsat_fetch(ptr %base, i32 %offset) alwaysinline {
  %wide = sext i32 %offset to i64
  %place = getelementptr float, ptr %base, i64 %wide
  call void @llvm.prefetch.p0(ptr %place, i32 0, i32 2, i32 1)
  ret void
}

!0 = !{i32 1}
"""
"""``einsat_fetch`` brings a line into the second-level cache: into the first it is slower than not at all."""


def streams(size_bytes: int) -> bool:
    """Return whether a tensor of so many bytes is written, or read, past the caches on this kind of machine."""
    return size_bytes >= STREAMED_BYTES and platform.machine() in _MACHINES


def stream(buffer: Any, offset: Any, value: Any) -> Any:
    """Return the statement that stores a line's elements past the caches where they are a line, else as usual."""
    return _call("einsat_stream", tirx.address_of(tirx.BufferLoad(buffer, [offset])), value)


def finish() -> Any:
    """Return the statement after which other threads see what was streamed."""
    return _call("einsat_finish")


def fetch(buffer: Any, offset: Any) -> Any:
    """Return the statement that fetches the line at an offset, which may lie beyond the buffer."""
    return _call("einsat_fetch", tirx.address_of(tirx.BufferLoad(buffer, [tirx.IntImm("int32", 0)])), offset)


def prefetched(offsets: Sequence[Index], vector: Iterator) -> list[Index]:
    """Return what to prefetch where a tensor is read at several offsets, so that memory sees one stream instead of many.

    With step s of the innermost loop outside of the vectors, places are c = row * s + rest. What is read at a rest is fetched
    in the foremost row, a few steps ahead, whichever place reads it first: rests are lines of one row, which together are
    read on. Rows that follow far behind find it in the last-level cache only, and fetch it from there.
    """
    forms: dict[Index, list[int]] = {}
    for offset in offsets:
        constant = offset.constant_part
        forms.setdefault(offset - constant, []).append(constant)
    fetched: dict[Index, None] = {}
    for form, constants in forms.items():
        step = min((abs(coefficient(form, i) or 0) for i in iterators_of(form) - {vector}), default=0)
        if not step:
            continue
        read_constants = set(constants)
        foremost: int | None = None
        rests: list[int] = []
        for constant in sorted(read_constants, key=lambda c: (-(c // step), c % step)):
            row, remainder = divmod(constant, step)
            if foremost is None or (foremost - row) * step * ELEMENT_BYTES > FAR_BYTES:
                foremost, rests = row, []
            if all(LINE_ELEMENTS <= abs(remainder - other) <= step - LINE_ELEMENTS for other in rests):
                rests.append(remainder)
                fetched[form + remainder + (foremost + STEPS_AHEAD) * step] = None
            behind_bytes = (foremost - row) * step * ELEMENT_BYTES
            if behind_bytes > NEAR_BYTES and not any(constant + k * step in read_constants for k in range(1, STEPS_AHEAD + 1)):
                fetched[form + constant + STEPS_AHEAD * step] = None
    return list(fetched)


def with_functions(body: Any) -> Any:
    """Return a kernel's body with the functions that it calls."""
    return tirx.AttrStmt(tirx.IntImm("int32", 0), "pragma_import_llvm", tvm.ir.StringImm(_FUNCTIONS), body)


def _call(name: str, *arguments: Any) -> Any:
    return tirx.Evaluate(tirx.call_extern("void", name, *arguments))
