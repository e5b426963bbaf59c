"""Concatenations that launch nothing: parts along the outermost axis are written where they will stand (``lower.placement``).

That holds for values made by kernels, each of which stands in one concatenation. Where one concatenation is a part of
another, the parts of the inner one stand in both for free, as long as the outer one reads the inner one and not its parts.
"""

from __future__ import annotations

from collections.abc import Mapping

from egraph.tensor import Candidate
from egraph.tensor.ops.movement import joins_outermost


def joined_for_free(candidates: Mapping[int, tuple[Candidate, ...]]) -> set[tuple[int, Candidate]]:
    """Return the candidates, with their classes, that need no step of their own."""
    joining = {number: [one for one in options if is_joining(one)] for number, options in candidates.items()}
    readers: dict[int, set[int]] = {}
    for number, options in joining.items():
        for one in options:
            for part in one.operands:
                readers.setdefault(part, set()).add(number)
    parts_of = {number: {part for one in options for part in one.operands} for number, options in joining.items()}
    innermost = {part: {one for one in found if parts_of[one].isdisjoint(found)} for part, found in readers.items()}
    made = {number for number, options in candidates.items() if any(not one.implementation.is_free for one in options)}
    return {
        (number, one)
        for number, options in joining.items()
        for one in options
        if all(part in made and innermost[part] == {number} for part in one.operands)
    }


def is_joining(candidate: Candidate) -> bool:
    """Return whether a kernel is a concatenation of distinct operands along the outermost axis, and nothing else."""
    fragment = candidate.fragment
    return joins_outermost(fragment) and len(set(fragment.inputs)) == len(fragment.inputs) == len(set(candidate.operands))
