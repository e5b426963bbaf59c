"""Random shapes: sizes 1, primes, even and odd; broadcastable variants; windows that yield a wanted size."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from random import Random

SIZES = (1, 2, 2, 3, 3, 4, 5, 7)
Shape = tuple[int, ...]


def size(random: Random) -> int:
    """Return a small size."""
    return random.choice(SIZES)


def narrower(random: Random, full: Shape) -> Shape:
    """Return a shape that broadcasts to ``full``, in a form that constants have: one axis, one number, all axes, or any."""
    if not full:
        return ()
    kind = random.random()
    if kind < 0.45:
        axis = random.choice((random.randrange(len(full)), min(1, len(full) - 1), len(full) - 1))
        shape = tuple(s if i == axis else 1 for i, s in enumerate(full))
        return shape[random.randint(0, axis) :] if random.random() < 0.4 else shape
    if kind < 0.6:
        return (1,) * random.choice((0, 1, len(full)))
    if kind < 0.8:
        return full
    shape = tuple(1 if random.random() < 0.4 else s for s in full)
    return shape[random.randint(0, len(full)) :] if random.random() < 0.4 else shape


def broadcast(shapes: Sequence[Shape]) -> Shape | None:
    """Return the common broadcast shape, or None."""
    rank = max((len(s) for s in shapes), default=0)
    result: list[int] = []
    for axis in range(rank):
        sizes = {s[len(s) - rank + axis] for s in shapes if len(s) - rank + axis >= 0} - {1}
        if len(sizes) > 1:
            return None
        result.append(sizes.pop() if sizes else 1)
    return tuple(result)


def regrouped(random: Random, shape: Shape) -> Shape:
    """Return another shape with the same number of elements: axes joined or split, axes of size 1 inserted or removed."""
    axes = list(shape)
    for _ in range(random.randint(1, 2)):
        kind = random.choice(("join", "split", "put one", "drop one"))
        if kind == "join" and len(axes) > 1:
            i = random.randrange(len(axes) - 1)
            axes[i : i + 2] = [axes[i] * axes[i + 1]]
        elif kind == "split" and any(a > 1 for a in axes) and len(axes) < 5:
            i = random.choice([i for i, a in enumerate(axes) if a > 1])
            factor = random.choice([d for d in range(1, axes[i] + 1) if axes[i] % d == 0])
            axes[i : i + 1] = [factor, axes[i] // factor]
        elif kind == "put one" and len(axes) < 5:
            axes.insert(random.randint(0, len(axes)), 1)
        elif kind == "drop one" and 1 in axes:
            axes.remove(1)
    if random.random() < 0.15:
        axes = [prod(axes)] if random.random() < 0.5 else sorted(axes)
    return tuple(axes)


def permutation(random: Random, rank: int) -> Shape:
    """Return a permutation: layouts, the last two swapped, batch axes only, or any."""
    axes = list(range(rank))
    kind = random.random()
    if kind < 0.25 and rank >= 2:
        axes[-2:] = axes[:-3:-1]
    elif kind < 0.4 and rank >= 3:
        axes[:-2] = random.sample(axes[:-2], rank - 2)
    elif kind < 0.5 and rank >= 3:
        axes = [0, *axes[2:], 1] if random.random() < 0.5 else [0, rank - 1, *axes[1:-1]]
    elif kind < 0.6:
        pass
    else:
        random.shuffle(axes)
    return tuple(axes)
