"""Generated mutants of regions: programs over rearranged operands that agree with several operators at once, or with one.

A region is a few operators over shared placeholders, with one or several results. Its products (convolutions, matrix products, average
pools) are first written over operands of other forms. Then their operands, as lists, are rearranged, and the products of these lists are
rearranged back to the results. Candidates are pruned by types, then by arithmetic, then by values at a few positions. For the
remaining candidates it is proved where they differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product

from egraph.derive.estimating import estimate
from egraph.derive.matching.views import reshaped, transposed
from egraph.errors import EinsatError
from egraph.partial.arrangements import PARTS, Nodes, arranged, exchanges, forms, led_back, padded_axes
from egraph.partial.boundaries import tightened, unpadded
from egraph.partial.moves import Regrouping
from egraph.partial.mutants import Agreement, Bounds, Moves, Mutant, Where, decided
from egraph.partial.pools import as_convolution, as_pool, known_as_constants
from egraph.tensor import Attributes, AttributeValue, Node, make, placeholder, placeholders, rewrite, walk
from egraph.tensor.ops import OPS, apply
from egraph.tensor.ops.window import Layout

PRODUCTS = ("Conv", "MatMul", "AveragePool")
AROUND = ("Add", "Mul", "Concat", "Pad", "Expand")
"""Operators of a region beside its products."""
MOST_FORMS, ENOUGH_FORMS = 150, 8
"""The most products over other forms of an operator's operands that are compared with it, and the most that are kept."""


@dataclass(frozen=True, slots=True)
class RegionBounds(Bounds):
    """The limits of the generation of programs."""

    tried: int = 300
    decided: int = 6
    alike: int = 1
    kinds: int = 6
    """The most ways to write the products that are arranged further."""
    arithmetic: float = 1.5
    """Programs beyond this multiple of both the region's arithmetic and its estimated cost are skipped. More arithmetic alone may pay off
    because of idle lanes and traffic."""


BOUNDS = RegionBounds()


@dataclass(frozen=True, slots=True)
class Product:
    """An operator on two operands (or one), whose result is restored by exchanging axes and then by its shape."""

    op: str
    operands: Nodes
    attributes: Attributes
    """The attributes of the operator, without the groups of a convolution: the operands determine them."""
    perm: tuple[int, ...] | None
    name: str

    @property
    def kind(self) -> object:
        """Return a key that is equal for products whose operands may be joined."""
        last = self.operands[-1].type.sizes
        return self.op, self.attributes, [node.type.rank for node in self.operands], last[2:] if self.op == "Conv" else ()

    def back(self, result: Node, goal: Sequence[int]) -> Node:
        return reshaped(result if self.perm is None else transposed(result, self.perm), goal)


def applied(op: str, operands: Nodes, attributes: Attributes) -> Node | None:
    """Return an operator on operands, a convolution with as many groups as they have; None if the types do not allow it."""
    values = dict(attributes)
    if op == "Conv":
        data, weight = (node.type.sizes for node in operands)
        if len(data) != len(weight):
            return None
        channels = data[1 if values["layout"] == "NCHW" else -1]
        values["group"] = channels // weight[1]
        if channels % weight[1] or weight[0] % (channels // weight[1]):
            return None
    try:
        return apply(op, *operands, attributes=tuple(sorted(values.items())))
    except EinsatError:
        return None


def as_it_is(node: Node) -> Product:
    attributes = tuple((key, value) for key, value in node.attributes if key != "group")
    return Product(node.op, node.inputs, attributes, None, "")


def generated(roots: Nodes, agreement: Agreement, where: Where, bounds: RegionBounds = BOUNDS) -> tuple[Mutant, ...]:
    """Return mutants of a region; the candidates with the least arithmetic are compared with it."""
    agrees = [cache(agreement(root)) for root in roots]
    limits = [(measure, bounds.arithmetic * measure(*roots)) for measure in (_arithmetic, estimate)]
    made: dict[Nodes, Moves] = {}
    for programs, moves in _programs(roots, agreement, bounds):
        priced = known_as_constants(programs)
        if programs != roots and programs not in made and any(measure(*priced) <= limit for measure, limit in limits):
            made[programs] = moves
    shares: dict[Nodes, float] = {}
    for programs in sorted(made, key=lambda each: (_arithmetic(*each), len(made[each]), estimate(*each)))[: bounds.tried]:
        share = 1.0
        for agrees_with, program in zip(agrees, programs, strict=True):
            share = min(share, agrees_with(program))
            if share < bounds.least_agreement:
                break
        else:
            shares[programs] = share
    return decided(roots, shares, made.__getitem__, where, bounds)


def zeros_around(roots: Nodes, where: Where, bounds: RegionBounds = BOUNDS) -> tuple[Mutant, ...]:
    """Return mutants of a window over data with a border that use zeros instead of the border."""
    made: dict[Nodes, Moves] = {(program,): (name,) for root in roots[:1] if len(roots) == 1 for program, name in unpadded(root)}
    return decided(roots, dict.fromkeys(made, 0.0), made.__getitem__, where, bounds)


def _arithmetic(*roots: Node) -> int:
    """Return the operations of programs, without those on constants."""
    total = 0
    constant: dict[Node, bool] = {}
    for node in walk(roots):
        constant[node] = bool(node.attribute("constant")) if node.op == "Placeholder" else all(constant[each] for each in node.inputs)
        flops = OPS[node.op].flops if node.op in OPS and not constant[node] else None
        total += flops([operand.type.sizes for operand in node.inputs], dict(node.attributes)) if flops else 0
    return total


def _programs(roots: Nodes, agreement: Agreement, bounds: RegionBounds) -> Iterator[tuple[Nodes, Moves]]:
    yield from _regrouped(roots)
    if len(roots) == 1 and all(operand.op == "Placeholder" for operand in roots[0].inputs):
        yield from (((program,), (f"sum over {name}",)) for program, name in tightened(roots[0]))
    if len(roots) == 1 and roots[0].op == "Conv":
        yield from (((program,), ("as AveragePool where taps are equal",)) for program in as_pool(roots[0]))
    below = [node for node in walk(roots) if node.op in PRODUCTS]
    if not below or any(operand.op != "Placeholder" for node in below for operand in node.inputs):
        return
    if set(below) == set(roots):
        ordered = list(roots)
        for row in _written(ordered, agreement, bounds):
            for made, moves in _arranged(row, [node.type.sizes for node in ordered]):
                programs = tuple(each.back(node, root.type.sizes) for each, node, root in zip(row, made, ordered, strict=True))
                yield programs, (*dict.fromkeys(each.name for each in row if each.name), *moves)
    elif len({node.op for node in below}) == 1:
        for made, moves in _arranged([as_it_is(node) for node in below], [root.type.sizes for root in roots], whole=True):
            yield made, moves


def _written(nodes: Sequence[Node], agreement: Agreement, bounds: RegionBounds) -> Iterator[list[Product]]:
    """Yield the products of a region, unchanged if they are of one kind, and each rewritten so that all are of one kind."""
    as_they_are = [as_it_is(node) for node in nodes]
    kinds = dict.fromkeys(str(each.kind) for each in as_they_are)
    yield from [as_they_are] if len(kinds) == 1 else []
    if len(kinds) > 1 or len(nodes) == 1:
        source = next((leaf for leaf in placeholders(*nodes) if leaf.attribute("constant")), nodes[0].inputs[0])
        ways = [[each, *_as_convolution(node, source), *rewritten(node, agreement)] for each, node in zip(as_they_are, nodes, strict=True)]
        for kind in list(dict.fromkeys(str(each.kind) for options in ways for each in options))[: bounds.kinds]:
            row = [next((each for each in options if str(each.kind) == kind), None) for options in ways]
            if all(each is not None for each in row) and row != as_they_are:
                yield [each for each in row if each is not None]
    taps = [node.inputs[1].type.sizes[2:] for node in nodes if node.op == "Conv"]
    if len(taps) == len(nodes) and len(set(taps)) > 1 and len({len(each) for each in taps}) == 1:
        wide = tuple(map(max, zip(*taps, strict=True)))
        yield [_widened(as_it_is(node), wide) for node in nodes]


def _widened(each: Product, taps: Sequence[int]) -> Product:
    """Return a convolution with zeros around its taps, and with more padding on both sides by as much as its window grows."""
    data, weight = each.operands
    added = [(want - have) // 2 for want, have in zip(taps, weight.type.sizes[2:], strict=True)]
    after = [want - have - before for want, have, before in zip(taps, weight.type.sizes[2:], added, strict=True)]
    wide = padded_axes(weight, {2 + axis: (b, a) for axis, (b, a) in enumerate(zip(added, after, strict=True))})
    steps = _integers(each.attributes, "dilations")
    added_pads = [more * step for more, step in zip([*added, *after], [*steps, *steps], strict=True)]
    pads = tuple(pad + more for pad, more in zip(_integers(each.attributes, "pads"), added_pads, strict=True))
    values: dict[str, AttributeValue] = {**dict(each.attributes), "pads": pads}
    return replace(each, operands=(data, wide), attributes=tuple(sorted(values.items())), name="taps padded")


def _as_convolution(node: Node, source: Node) -> Iterator[Product]:
    if node.op == "AveragePool":
        yield replace(as_it_is(as_convolution(node, source)), name="as Conv of equal taps")


def rewritten(node: Node, agreement: Agreement) -> tuple[Product, ...]:
    """Return products over other forms of an operator's operands that agree with it at all compared positions."""
    if node.op not in ("Conv", "MatMul"):
        return ()
    leaves = [placeholder(k, operand.type, constant=bool(operand.attribute("constant"))) for k, operand in enumerate(node.inputs)]
    names = dict(zip(leaves, node.inputs, strict=True))
    products = _rewritten(make(node.op, leaves, node.attributes, node.type), agreement)
    return tuple(replace(each, operands=tuple(_renamed(operand, names) for operand in each.operands)) for each in products)


def _renamed(root: Node, names: dict[Node, Node]) -> Node:
    return rewrite((root,), lambda old, new: names.get(old) or make(old.op, new, old.attributes, old.type))[root]


@cache
def _rewritten(node: Node, agreement: Agreement) -> tuple[Product, ...]:
    agrees = agreement(node)
    as_written = as_it_is(node)
    windows = [as_written.attributes, *_exchanged_windows(as_written)]
    tried = 0
    products: list[Product] = []
    left, right = (forms(operand) for operand in node.inputs)
    for (_, x), (_, w) in sorted(product(enumerate(left), enumerate(right)), key=lambda pair: pair[0][0] + pair[1][0]):
        ways: list[tuple[str, Nodes, Attributes]] = [("MatMul", (x, w), ()), ("MatMul", (w, x), ())]
        ways += [("Conv", (x, w), each) for each in windows] if node.op == "Conv" and x.type.rank == w.type.rank == node.type.rank else []
        for op, operands, attributes in ways:
            result = applied(op, operands, attributes)
            if result is None or result.type.elements != node.type.elements or _arithmetic(result) != _arithmetic(node):
                continue
            for perm in (None, *exchanges(result.type.rank)):
                made = Product(op, operands, attributes, perm, f"as {op} of other forms")
                sizes = [result.type.sizes[axis] for axis in perm] if perm else result.type.sizes
                program = made.back(result, node.type.sizes)
                if program is node or (len(sizes) == node.type.rank and tuple(sizes) != node.type.sizes):
                    continue
                tried += 1
                if agrees(program) == 1.0:
                    products.append(made)
                    break
            if tried >= MOST_FORMS or len(products) >= ENOUGH_FORMS:
                return tuple(products)
    return tuple(products)


def _result(each: Product) -> Node:
    result = applied(each.op, each.operands, each.attributes)
    assert result is not None
    return result


def _exchanged_windows(convolution: Product) -> Iterator[Attributes]:
    if convolution.op == "Conv" and convolution.operands[1].type.rank == 4:
        top, left, bottom, right = _integers(convolution.attributes, "pads")
        strides, dilations = (_integers(convolution.attributes, name)[::-1] for name in ("strides", "dilations"))
        values: dict[str, AttributeValue] = {"pads": (left, top, right, bottom), "strides": strides, "dilations": dilations}
        changed = tuple(sorted((dict(convolution.attributes) | values).items()))
        if changed != convolution.attributes:
            yield changed


def _integers(attributes: Attributes, name: str) -> tuple[int, ...]:
    value = dict(attributes)[name]
    assert isinstance(value, tuple)
    return tuple(number for number in value if isinstance(number, int))


def _arranged(row: Sequence[Product], goals: Sequence[tuple[int, ...]], *, whole: bool = False) -> Iterator[tuple[Nodes, Moves]]:
    """Yield the results of arranged operands and how they were made, with the shapes of the products' results, or of the region's."""
    shapes = list(goals) if whole else [_result(each).type.sizes for each in row]
    first = row[0]
    lists = tuple(zip(*(each.operands for each in row), strict=True))
    is_conv = first.op == "Conv"
    filters = [each.operands[1].type.sizes[0] for each in row] if is_conv else ()
    groups = sorted({_groups(each) for each in row}) if is_conv else []
    counts = (*PARTS, *groups)
    options = [list(arranged(lists[0], filters, (), counts)), *(list(arranged(nodes, (), groups, counts)) for nodes in lists[1:])]
    for chosen in product(*options):
        lengths = {len(nodes) for _, nodes in chosen}
        if len(lengths - {1}) > 1:
            continue
        count = max(lengths)
        spread = [nodes * count if len(nodes) == 1 else nodes for _, nodes in chosen]
        for attributes in dict.fromkeys(each.attributes for each in row):
            results = [applied(first.op, operands, attributes) for operands in zip(*spread, strict=True)]
            if any(result is None for result in results):
                continue
            made = tuple(result for result in results if result is not None)
            for name, programs in led_back(made, shapes, groups):
                sides = ("data", "weights")
                moves = [f"{side} {text}" for side, (text, _) in zip(sides, chosen, strict=False) if text]
                yield programs, (*moves, *([f"results {name}"] if name else []))


def _groups(each: Product) -> int:
    layout = dict(each.attributes)["layout"]
    data, weight = (node.type.sizes for node in each.operands)
    return int(data[1 if layout == "NCHW" else -1] // weight[1])


def _regrouped(roots: Nodes) -> Iterator[tuple[Nodes, Moves]]:
    """Yield the region itself over data in which a digit of one axis moves to another: windows then reach across parts that were apart."""
    windowed = [node for node in walk(roots) if node.op in ("Conv", "AveragePool")]
    if len(list(walk(roots))) - len([node for node in walk(roots) if node.op == "Placeholder"]) < 2 or not windowed:
        return
    layout = Layout(windowed[0].string("layout"), windowed[0].type.rank - 2)
    leaves = [node for node in walk(roots) if node.op == "Placeholder"]
    data = {node for node in leaves if not node.attribute("constant") and node.type.rank == windowed[0].type.rank}
    data -= {node.inputs[1] for node in windowed if node.op == "Conv"}
    space = range(layout.first, layout.first + layout.spatial)
    for axis, factor, folds in product(space, (2, 4), (True, False)):
        source, target = (axis, 0) if folds else (0, axis)
        way = Regrouping(source, target, factor, folds, False)
        moved = {leaf: way.of(leaf) for leaf in data}
        if any(node is None for node in moved.values()):
            continue
        try:
            below = rewrite(roots, partial(_over, moved))
            programs = [way.inverse.of(below[root]) for root in roots]
        except EinsatError:
            continue
        if all(p is not None and p.type == root.type for p, root in zip(programs, roots, strict=True)):
            yield tuple(p for p in programs if p is not None), (f"axis {source} by {factor} into {target}",)


def _over(moved: Mapping[Node, Node | None], old: Node, new: Nodes) -> Node:
    if old.op == "Placeholder":
        return moved.get(old) or old
    return apply(old.op, *new, attributes=old.attributes) if old.op in (*PRODUCTS, *AROUND) else make(old.op, new, old.attributes, old.type)
