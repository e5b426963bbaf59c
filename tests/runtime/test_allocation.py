"""Memory of an executable is aligned, disjoint, and alive as long as an array uses it."""

import gc

import numpy as np

from runtime.devices.cpu.allocation import ALIGNMENT_BYTES, BLOCK_BYTES, HUGE_PAGE_BYTES, Allocator
from runtime.storage import pointer


def test_arrays_are_aligned_and_do_not_overlap() -> None:
    allocator = Allocator()
    arrays = [allocator.allocate(size) for size in (1, 0, 63, 64, 65, BLOCK_BYTES, 1000, BLOCK_BYTES + 1, 3)]
    assert [len(array) for array in arrays] == [1, 0, 63, 64, 65, BLOCK_BYTES, 1000, BLOCK_BYTES + 1, 3]
    assert all(pointer(array) % ALIGNMENT_BYTES == 0 for array in arrays if len(array))
    for number, array in enumerate(arrays):
        array[:] = number
    assert all((array == number).all() for number, array in enumerate(arrays))


def test_large_arrays_begin_on_a_huge_page() -> None:
    assert pointer(Allocator().allocate(BLOCK_BYTES)) % HUGE_PAGE_BYTES == 0


def test_arrays_outlive_their_allocator() -> None:
    array = Allocator().allocate(4096)
    array[:] = np.arange(4096) % 251
    gc.collect()
    assert (array == np.arange(4096) % 251).all()
