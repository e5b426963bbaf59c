"""original = stitch(mutant; box: the original at the box's positions; ...), for boxes that hold every position where they differ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import partial
from itertools import starmap
from math import prod

from egraph.derive.derivation import Derivation, DerivationRule, RegionRule, Step
from egraph.derive.estimating import estimate
from egraph.derive.matching.match import match
from egraph.derive.matching.merging import along_batch
from egraph.derive.matching.views import reshaped, transposed
from egraph.partial.generation import AROUND, PRODUCTS, generated, zeros_around
from egraph.partial.mutants import Agreement, Mutant, Where, mutants
from egraph.partial.pools import known_as_constants
from egraph.tensor import Node, TensorType, make, placeholder, rewrite, walk
from egraph.tensor.boxes import Box, axis_names, describe_boxes, restricted, runs, widened
from egraph.tensor.expr.bodies import guarded
from egraph.tensor.expr.compose import at
from egraph.tensor.expr.index import Index, index
from egraph.tensor.expr.scope import Compare, Guarded, Number, Read, Scalar, Scope, Tensor, inside
from egraph.tensor.ops import OPS, apply
from egraph.tensor.ops.expression import text_of
from egraph.tensor.ops.reference import meaning
from egraph.tensor.ops.scopes import grid
from egraph.tensor.ops.stitch import stitch_of
from egraph.tensor.ops.window import Layout, window_of

NAME, REGIONS, BORDERS = "partial equivalence", "mutants of regions", "zeros for borders"
MOST_PROPOSED = 3
"""The most corrected programs, and the most exact ones, that are proposed for one operator: each adds nodes to the e-graph, and kernels to
measure.
"""
MOST_COSTLY = 1.5
"""Programs beyond this multiple of the operator's own estimate are not proposed: estimates are rarely wrong by more."""


def stitches(original: Node, mutant: Node, boxes: Sequence[Box]) -> tuple[Node, ...]:
    """Return programs that compute ``original``: ``mutant`` outside of disjoint boxes, the original's own operators inside.

    Without boxes, the result is the mutant itself. It is empty if the original cannot be computed on a box alone.
    """
    if not boxes:
        return (mutant,)
    parts: list[tuple[Box, Node]] = []
    for box in widened(boxes, original.type.sizes):
        part = correction(original, box)
        if part is None:
            return ()
        parts.append((box, part))
    beside = _joined(mutant, parts) if len(parts) == len(boxes) else None
    written = (_multiplied(parts, original.type.sizes), _batched(parts))
    others = (beside, *(None if made is None else _chosen(mutant, made) for made in written))
    return (_chosen(mutant, parts), *(program for program in others if program is not None))


def _batched(parts: Sequence[tuple[Box, Node]]) -> list[tuple[Box, Node]] | None:
    """Return the corrections, with those by one operator on the same weights joined into a larger batch; None if none can be joined."""
    alike: dict[object, list[int]] = {}
    for number, (_, part) in enumerate(parts):
        if part.op == "Conv":
            alike.setdefault((part.inputs[1], part.attributes, part.inputs[0].type.sizes[1:]), []).append(number)
    result = dict(enumerate(parts))
    for numbers in alike.values():
        together = along_batch([parts[number][1] for number in numbers]) if len(numbers) > 1 else None
        for number, part in zip(numbers, together or (), strict=False):
            result[number] = parts[number][0], part
    return list(result.values()) if list(result.values()) != list(parts) else None


def _multiplied(parts: Sequence[tuple[Box, Node]], sizes: Sequence[int]) -> list[tuple[Box, Node]] | None:
    """Return the corrections, with convolutions whose boxes have gaps in memory as products; None if there are none.

    A library writes the rows of a product at any distance, but the results of other operators only densely.
    """
    result = [(box, (_of_patches(part, box, sizes) if runs(box, sizes) > 1 else None) or part) for box, part in parts]
    return result if result != list(parts) else None


def _of_patches(node: Node, box: Box, sizes: Sequence[int]) -> Node | None:
    """conv(x, w)[n, g, o, f] = sum(t, c) patches[n, g, o, t, c] w[g, t, c, f],  patches[n, g, o, t, c] = x[n, o s + t d - p, g, c]

    With channels last, the product's rows are the largest set of positions at equal distances in the box, and its columns are a group's
    filters. With channels first, its rows are the filters, and its columns the largest set of adjacent positions, or one column if none
    are adjacent. All other axes are a batch. None for other operators, for groups of one channel, which have generated loops, and for
    single taps with channels last, for which the library has the product itself.
    """
    if node.op != "Conv":
        return None
    weight = node.inputs[1]
    layout, group = Layout(node.string("layout"), node.type.rank - 2), node.integer("group")
    filters, channels, *taps = weight.type.sizes
    is_last, counts = layout.name == "NHWC", node.type.sizes
    if (group > 1 and channels == 1) or (is_last and group == 1 and prod(taps) == 1):
        return None
    positions = [axis for axis in range(len(counts)) if axis != layout.channel]
    rows = _at_equal_distances(box, sizes, positions) if is_last else _side_by_side(box, sizes, positions)
    along = max(rows, key=lambda axes: prod(counts[axis] for axis in axes), default=[])
    beside = [axis for axis in positions if axis not in along]
    groups, each, inner = [group] if group > 1 else [], filters // group, prod(taps) * channels
    batch, among = [*(counts[axis] for axis in beside if counts[axis] > 1), *groups], prod(counts[axis] for axis in along)
    patches = _patches(node, beside, along)
    if is_last:
        by_group = transposed(reshaped(weight, (*groups, each, channels, *taps)), _taps_outermost(len(groups), len(taps)))
        product = apply("MatMul", reshaped(patches, (*batch, among, inner)), reshaped(by_group, (*groups, inner, each)))
    else:
        product = apply("MatMul", reshaped(weight, (*groups, each, inner)), reshaped(patches, (*batch, inner, among)))
    sizes_of = [*counts, group, each]  # the channel axis of the result becomes two: groups, filters of a group
    of_group, of_filter = len(counts), len(counts) + 1
    order = [*beside, *([of_group] if groups else []), *([*along, of_filter] if is_last else [of_filter, *along])]
    whole = reshaped(product, [sizes_of[axis] for axis in order])
    of_channel = [of_group, of_filter] if groups else [of_filter]
    perm = [order.index(axis) for place in range(len(counts)) for axis in (of_channel if place == layout.channel else [place])]
    return reshaped(transposed(whole, perm), counts)


def _patches(node: Node, beside: Sequence[int], along: Sequence[int]) -> Node:
    """Return the elements that a convolution reads, with the axes: positions of ``beside``, groups, positions of ``along``, taps, channels.

    If channels come first, taps and channels precede the positions of ``along``.
    """
    data, weight = node.inputs
    layout, group, counts = Layout(node.string("layout"), node.type.rank - 2), node.integer("group"), node.type.sizes
    _, channels, *taps = weight.type.sizes
    is_last, window, lengths = layout.name == "NHWC", window_of(taps, dict(node.attributes)), [counts[axis] for axis in along]
    heads = [*(counts[axis] for axis in beside), *([group] if group > 1 else [])]
    read_of = [*taps, channels] if is_last else [channels, *taps]
    iterators, places = grid("i", [*heads, *(lengths + read_of if is_last else read_of + lengths)])
    tail = places[len(heads) :]
    moved, tap = (tail[: len(along)], tail[len(along) :]) if is_last else (tail[len(read_of) :], tail[: len(read_of)])
    at_axis = dict(zip([*beside, *along], [*places[: len(beside)], *moved], strict=True))
    channel, at_taps = (tap[-1], tap[:-1]) if is_last else (tap[0], tap[1:])
    if group > 1:
        channel = places[len(beside)] * channels + channel
    outputs = [at_axis[axis] for axis in range(layout.first, layout.first + layout.spatial)]
    positions = window.positions(outputs, at_taps)
    read = Read(Tensor("0", data.type.sizes, data.type.dtype), layout.join(at_axis[0], channel, positions))
    body = guarded(window.guards(positions, layout.space(data.type.sizes)), read, Number(Fraction(0)))
    return apply("Expression", data, text=text_of(Scope.pointwise(iterators, body)))


def _taps_outermost(groups: int, taps: int) -> tuple[int, ...]:
    """Return the order of the axes of weights, by groups or not, in which filters come last: taps, channels, filters."""
    return (*range(groups), *range(groups + 2, groups + 2 + taps), groups + 1, groups)


def _at_equal_distances(box: Box, sizes: Sequence[int], axes: Sequence[int]) -> list[list[int]]:
    """Return the axes of a box with several positions, grouped so that consecutive positions of a group are equally far apart in memory."""
    steps = [positions.step * prod(sizes[axis + 1 :]) for axis, positions in enumerate(box)]
    groups: list[list[int]] = []
    for axis in (axis for axis in axes if len(box[axis]) > 1):
        if groups and steps[groups[-1][-1]] == len(box[axis]) * steps[axis]:
            groups[-1].append(axis)
        else:
            groups.append([axis])
    return groups


def _side_by_side(box: Box, sizes: Sequence[int], axes: Sequence[int]) -> list[list[int]]:
    """Return the groups of ``_at_equal_distances`` whose consecutive positions are adjacent in memory."""
    return [group for group in _at_equal_distances(box, sizes, axes) if box[group[-1]].step * prod(sizes[group[-1] + 1 :]) == 1]


def correction(root: Node, box: Box) -> Node | None:
    """Return the program that computes a fragment at the positions of a box, from the needed parts of its operands."""
    if root.op == "Placeholder":
        return _cut(root, box)
    direct = _same_window(root, box)
    if direct is not None:
        return direct
    leaves = [
        placeholder(k, operand.type, constant=operand.op == "Placeholder" and bool(operand.attribute("constant")))
        for k, operand in enumerate(root.inputs)
    ]
    matches = match(restricted(meaning(root), box), leaves)
    if not matches:
        return None
    named = [program for program in matches if program.op != "Expression"] or matches  # a library has a kernel for an operator
    if OPS[root.op].category == "movement":  # a movement has none; one generated kernel replaces several
        named = [program for program in named if _moves(program) <= 1] or matches[-1:]
    cheapest = min(named, key=lambda program: (estimate(program), program.digest))
    names = dict(zip(leaves, root.inputs, strict=True))

    def built(old: Node, new: tuple[Node, ...]) -> Node:
        if old in names:
            return names[old]
        if old.op == "Slice" and old.inputs[0] in names and names[old.inputs[0]].op != "Placeholder":
            needed = tuple(map(range, *(old.integers(name) for name in ("starts", "ends", "steps"))))
            if all(positions.step > 0 for positions in needed):
                return correction(names[old.inputs[0]], needed) or make(old.op, new, old.attributes, old.type)
        return _compacted(make(old.op, new, old.attributes, old.type))

    return rewrite((cheapest,), built)[cheapest]


def _moves(program: Node) -> int:
    """Return the number of operators of a program that move elements."""
    return sum(node.op in OPS and OPS[node.op].category == "movement" for node in walk((program,)))


def _same_window(node: Node, box: Box) -> Node | None:
    """window(x) at the positions of a box = window(the part of x that these read), with the padding that they read

    Taps of a convolution that read padding at all these positions are dropped. None for operators without a window, and if the whole window
    is padding.
    """
    if node.op not in ("Conv", "AveragePool"):
        return None
    layout, values = Layout(node.string("layout"), node.type.rank - 2), dict(node.attributes)
    is_conv, rank = node.op == "Conv", layout.spatial
    weight = [range(size) for size in node.inputs[1].type.sizes] if is_conv else []
    data = [range(size) for size in node.inputs[0].type.sizes]
    data[0] = box[0]
    if is_conv and box[layout.channel] != weight[0]:
        if values["group"] != 1:
            return None
        weight[0] = box[layout.channel]
    elif not is_conv:
        data[layout.channel] = box[layout.channel]
    strides, pads = list(node.integers("strides")), list(node.integers("pads"))
    for number, (dilation, axis) in enumerate(zip(node.integers("dilations"), range(layout.first, layout.first + rank), strict=True)):
        positions, size = box[axis], len(data[axis])
        begins = [at * strides[number] - pads[number] for at in (positions[0], positions[-1])]
        taps = range(len(weight[2 + number]) if is_conv else node.integers("kernel_shape")[number])
        if is_conv:
            taps = _run([tap for tap in taps if begins[1] + tap * dilation >= 0 and begins[0] + tap * dilation < size])
            if not taps:
                return None
            weight[2 + number] = taps
        first, stop = begins[0] + taps[0] * dilation, begins[1] + taps[-1] * dilation + 1
        data[axis] = range(max(0, first), min(size, stop))
        if not data[axis]:
            return None
        pads[number], pads[number + rank] = max(0, -first), max(0, stop - size)
        strides[number] *= positions.step if len(positions) > 1 else 1
    inner = node.inputs[0]
    read = _cut(inner, tuple(data)) if inner.op == "Placeholder" else correction(inner, tuple(data)) or _cut(inner, tuple(data))
    others = [_cut(node.inputs[1], tuple(weight))] if is_conv else []
    attributes = tuple(sorted({**values, "strides": tuple(strides), "pads": tuple(pads)}.items()))
    return _compacted(apply(node.op, read, *others, attributes=attributes))


def _run(positions: Sequence[int]) -> range:
    return range(positions[0], positions[-1] + 1) if positions else range(0)


def _compacted(node: Node) -> Node:
    """window(x, stride s) = window(what it reads of x, stride e), for windows of e < s elements over moved ones; no others are moved"""
    data = node.inputs[0] if node.op in ("Conv", "AveragePool") else node
    if data is node or data.op not in OPS or OPS[data.op].category != "movement" or any(node.integers("pads")):
        return node
    layout = Layout(node.string("layout"), node.type.rank - 2)
    taps = node.integers("kernel_shape") if node.op == "AveragePool" else node.inputs[1].type.sizes[2:]
    extents = [(count - 1) * step + 1 for count, step in zip(taps, node.integers("dilations"), strict=True)]
    strides = node.integers("strides")
    shorter = tuple(map(min, extents, strides))
    if shorter == strides:
        return node
    sizes, coordinates = list(data.type.sizes), list[Index]()
    for axis, (extent, stride) in enumerate(zip(extents, strides, strict=True), layout.first):
        if extent < stride:
            sizes[axis] = extent * node.type.sizes[axis]
    iterators, places = grid("i", sizes)
    for axis, place in enumerate(places):
        number = axis - layout.first
        is_cut = 0 <= number < layout.spatial and extents[number] < strides[number]
        coordinates.append(place // extents[number] * strides[number] + place % extents[number] if is_cut else index(place))
    scope = meaning(data)
    body = at(Scope(scope.traversal, (), scope.reduction, scope.body), tuple(coordinates))
    read = apply("Expression", *data.inputs, text=text_of(Scope(iterators, scope.summation, scope.reduction, body)))
    attributes = tuple(sorted({**dict(node.attributes), "strides": shorter}.items()))
    return make(node.op, (read, *node.inputs[1:]), attributes, node.type)


def _cut(node: Node, box: Box) -> Node:
    if all(positions == range(size) for positions, size in zip(box, node.type.sizes, strict=True)):
        return node
    starts, steps = tuple(p.start for p in box), tuple(p.step for p in box)
    return apply("Slice", node, starts=starts, ends=tuple(p.start + len(p) * p.step for p in box), steps=steps)


def _chosen(mutant: Node, parts: Sequence[tuple[Box, Node]]) -> Node:
    """{i} if i lies in a box: its correction there, else the mutant"""
    sizes = mutant.type.sizes
    iterators, places = grid("i", sizes)
    tensors = [Tensor(str(k), node.type.sizes, node.type.dtype) for k, node in enumerate((mutant, *(part for _, part in parts)))]
    body: Scalar = Read(tensors[0], places)
    for (box, _), tensor in zip(reversed(parts), reversed(tensors[1:]), strict=True):
        conditions = [c for place, positions, size in zip(places, box, sizes, strict=True) for c in _within(place, positions, size)]
        read = Read(tensor, tuple((place - r.start) // r.step if len(r) > 1 else index(0) for place, r in zip(places, box, strict=True)))
        body = Guarded(tuple(conditions), read, body) if conditions else read
    nodes = [mutant, *(part for _, part in parts)]
    return apply("Expression", *nodes, text=text_of(Scope.pointwise(iterators, body)))


def _within(place: Index, positions: range, size: int) -> Iterable[Compare]:
    """Yield the conditions for a place on an axis to be among positions, without conditions that hold on the whole axis."""
    if len(positions) == 1:
        if size > 1:
            yield Compare(place, "==", index(positions[0]))
        return
    low, high = inside(place, positions[0], positions[-1] + 1)
    if positions[0] > 0:
        yield low
    if positions[-1] + positions.step < size:
        yield high
    if positions.step > 1:
        yield Compare((place - positions.start) % positions.step, "==", index(0))


def _joined(mutant: Node, parts: Sequence[tuple[Box, Node]]) -> Node | None:
    """Return the concatenation of the parts and of the mutant between them, if every box is whole except for one run along one axis."""
    sizes = mutant.type.sizes
    axes = {axis for box, _ in parts for axis, r in enumerate(box) if r != range(sizes[axis])}
    if len(axes) != 1 or any(r.step != 1 for box, _ in parts for r in box):
        return None
    (axis,) = axes
    along: list[Node] = []
    end = 0
    for box, part in sorted(parts, key=lambda pair: pair[0][axis].start):
        if box[axis].start > end:
            along.append(_cut(mutant, tuple(range(end, box[axis].start) if k == axis else range(n) for k, n in enumerate(sizes))))
        along.append(part)
        end = box[axis].stop
    if end < sizes[axis]:
        along.append(_cut(mutant, tuple(range(end, sizes[axis]) if k == axis else range(n) for k, n in enumerate(sizes))))
    return apply("Concat", *along, axis=axis) if len(along) > 1 else along[0]


def partial_rules(agreement: Agreement, where: Where) -> tuple[DerivationRule, RegionRule, RegionRule]:
    """Return the rules that find mutants of operators and of regions by their agreement, and correct them where they differ.

    Windows over data with a border have a separate rule: there is little to search, and of a region's operators they cost the least.
    """

    def of_operator(node: Node) -> Iterable[Derivation]:
        programs = (*mutants(node, agreement, where), *generated((node,), agreement, where))
        return (derivation for (derivation,) in stitched((node,), programs, NAME))

    def of_region(roots: tuple[Node, ...]) -> Iterable[tuple[Derivation, ...]]:
        return stitched(roots, generated(roots, agreement, where), REGIONS)

    def of_border(roots: tuple[Node, ...]) -> Iterable[tuple[Derivation, ...]]:
        return stitched(roots, zeros_around(roots, where), BORDERS)

    return (
        DerivationRule(NAME, PRODUCTS, of_operator, rounds=0),
        RegionRule(REGIONS, (*PRODUCTS, *AROUND), PRODUCTS, of_region),
        RegionRule(BORDERS, ("Conv", "AveragePool", "Pad"), ("Pad",), of_border, most_operators=2, is_quick=True),
    )


def stitched(roots: tuple[Node, ...], offered: Iterable[Mutant], name: str) -> Iterable[tuple[Derivation, ...]]:
    """Yield alternatives: programs equal to an operator or to the results of a region, made of mutants and their corrections. The cheapest
    estimate comes first.
    """
    alternatives: dict[tuple[Node, ...], tuple[Derivation, ...]] = {}
    exact: set[tuple[Node, ...]] = set()
    limit = MOST_COSTLY * estimate(*roots)
    for mutant in offered:
        choices = [(*stitches(*parts), *_channels_last(*parts)) for parts in zip(roots, mutant.programs, mutant.boxes, strict=True)]
        if not all(choices):
            continue
        for number in range(max(map(len, choices))):
            programs = tuple(choice[min(number, len(choice) - 1)] for choice in choices)
            if _cost(programs) <= limit:
                derivations = starmap(partial(_derivation_of, name, mutant), zip(roots, programs, mutant.boxes, strict=True))
                alternatives.setdefault(programs, tuple(derivations))
                exact |= {programs} if not mutant.cells else set()
    order = sorted(alternatives, key=lambda programs: (_cost(programs), [program.digest for program in programs]))
    by_kind = [[programs for programs in order if (programs in exact) == is_exact][:MOST_PROPOSED] for is_exact in (False, True)]
    return (alternatives[programs] for programs in order if any(programs in kind for kind in by_kind))


def _cost(programs: Sequence[Node]) -> int:
    """Return the estimated cost of programs, without nodes that launch nothing: the parts of a stitch are written in place, and
    transposes at the ends cancel if the whole model has that layout.
    """
    programs = known_as_constants(programs)
    total = estimate(*programs)
    for node in walk(programs):
        alone = make(node.op, [placeholder(k, each.type) for k, each in enumerate(node.inputs)], node.attributes, node.type)
        is_end = node.op == "Transpose" and (node in programs or node.inputs[0].op == "Placeholder")
        if is_end or (node.op == "Expression" and stitch_of(alone)):
            total -= estimate(alone)
    return total


def _channels_last(root: Node, program: Node, boxes: Sequence[Box]) -> tuple[Node, ...]:
    """Return stitched programs over transposed data, channels last: in this layout, rows of a box are contiguous in memory.

    The result is empty if there is nothing to stitch, or if there are operators other than windows with channels first and their Pads.
    """
    windows = [node for node in walk((root, program)) if node.op in ("Conv", "AveragePool")]
    weights = {node.inputs[1] for node in windows if node.op == "Conv"}
    rank, others = root.type.rank, {node.op for node in walk((root, program))} - {"Conv", "AveragePool", "Pad", "Placeholder"}
    if not boxes or others or any(node.string("layout") != "NCHW" for node in windows) or any(each.op != "Placeholder" for each in weights):
        return ()
    last, first = (0, *range(2, rank), 1), (0, rank - 1, *range(1, rank - 1))
    leaves: dict[Node, Node] = {}

    def turned(old: Node, new: tuple[Node, ...]) -> Node:
        values = dict(old.attributes)
        match old.op:
            case "Placeholder" if old in weights:
                return old
            case "Placeholder":
                leaves[old] = placeholder(old.integer("index"), TensorType(old.type.dtype, tuple(old.type.sizes[axis] for axis in last)))
                return leaves[old]
            case "Pad":
                values |= {name: tuple(old.integers(name)[axis] for axis in last) for name in ("before", "after")}
            case _:
                values["layout"] = "NHWC"
        return apply(old.op, *new, attributes=tuple(sorted(values.items())))

    made = rewrite((root, program), turned)
    back = {new: apply("Transpose", old, perm=last) for old, new in leaves.items()}
    programs = stitches(made[root], made[program], [tuple(box[axis] for axis in last) for box in boxes])
    led_back = rewrite(programs, lambda old, new: back.get(old) or make(old.op, new, old.attributes, old.type))
    return tuple(apply("Transpose", led_back[each], perm=first) for each in programs)


def _derivation_of(name: str, mutant: Mutant, root: Node, program: Node, boxes: Sequence[Box]) -> Derivation:
    where = describe_boxes(boxes, root.type.sizes, axis_names(root)) if boxes else ""
    steps = (Step("mutation", "; ".join(mutant.moves)), *((Step("correction", f"where {where}"),) if where else ()))
    kind = "corrected" if any(mutant.boxes) else "exact"
    return Derivation(f"{name}: {kind}, {' and '.join(mutant.moves)}", program, steps)
