"""src[b..., M, K] @ weights[1..., K, N] = src[(b... M), K] @ weights[K, N]: fewer dimensions, better kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from runtime.devices.cpu.onednn.library import Window


def collapse_matmul(
    inputs: Sequence[Window], output: Window, positions: Mapping[str, int], post_positions: Sequence[int]
) -> tuple[list[Window], Window]:
    """Return the operands with batch dimensions dropped (all of size 1) or merged into the rows where strides allow."""
    used = sorted({*positions.values(), *post_positions})
    operands = {position: _pad(inputs[position], len(output.shape)) for position in used}
    output, operands = _drop_leading_ones(output, operands)
    while len(output.shape) > 2:
        merged = _merge_rows(output, operands, positions)
        if merged is None:
            break
        output, operands = merged
    return [operands.get(position, window) for position, window in enumerate(inputs)], output


def _pad(window: Window, rank: int) -> Window:
    missing = rank - len(window.shape)
    if missing <= 0:
        return window
    outer = window.shape[0] * window.strides[0] if window.shape else 1
    return window.with_axes((1,) * missing + window.shape, (max(outer, 1),) * missing + window.strides)


def _drop_leading_ones(output: Window, operands: dict[int, Window]) -> tuple[Window, dict[int, Window]]:
    while len(output.shape) > 2 and all(window.shape[0] == 1 for window in (output, *operands.values())):
        output = _without(output, 0)
        operands = {position: _without(window, 0) for position, window in operands.items()}
    return output, operands


def _without(window: Window, axis: int) -> Window:
    return window.with_axes(window.shape[:axis] + window.shape[axis + 1 :], window.strides[:axis] + window.strides[axis + 1 :])


def _merge_rows(output: Window, operands: dict[int, Window], positions: Mapping[str, int]) -> tuple[Window, dict[int, Window]] | None:
    """Merge the last batch dimension into the rows; None when some operand does not allow it."""
    src, weights, bias = positions["src"], positions["weights"], positions.get("bias")
    if operands[weights].shape[-3] != 1:
        return None
    target = output.shape[-3:-1]
    result = {}
    for position, window in operands.items():
        if position in (weights, bias):
            if window.shape[-3] != 1 or (position == bias and window.shape[-2] != 1):
                return None
            merged: Window | None = _without(window, len(window.shape) - 3)
        elif position != src and window.shape[-3:-1] == (1, 1):
            merged = _without(window, len(window.shape) - 3)
        else:
            merged = _merge(window) if window.shape[-3:-1] == target else None
        if merged is None:
            return None
        result[position] = merged
    new_output = _merge(output)
    return None if new_output is None else (new_output, result)


def _merge(window: Window) -> Window | None:
    (*batch, outer, rows, columns), (*batch_strides, outer_stride, row_stride, column_stride) = window.shape, window.strides
    if outer != 1 and rows != 1 and outer_stride != rows * row_stride:
        return None
    stride = outer_stride if rows == 1 else row_stride
    return window.with_axes((*batch, outer * rows, columns), (*batch_strides, stride, column_stride))
