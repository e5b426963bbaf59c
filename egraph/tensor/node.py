"""The one node type: frozen, hash-consed, so that equal terms are the same object.

A ``Node`` is the value that it computes. Operators have one result; an opaque ONNX node with several
has the pseudo-type ``tuple`` and is read through ``OpaqueOutput`` nodes.

Leaves: ``Input(name)``, ``Constant(digest)`` (data in ``Graph.tensors``) and, in kernel fragments,
``Placeholder(index, constant)``.
"""

from __future__ import annotations

import hashlib
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, lru_cache

from egraph.tensor.types import Attributes, AttributeValue, TensorType

LEAVES = ("Input", "Constant", "Placeholder")
TUPLE = TensorType("tuple", None)


class Node:
    """An operator applied to operands. Build with :func:`make`; compare with ``is`` or ``==`` (the same)."""

    __slots__ = ("__dict__", "__weakref__", "attributes", "inputs", "op", "type")
    op: str
    inputs: tuple[Node, ...]
    attributes: Attributes
    type: TensorType

    def attribute(self, name: str) -> AttributeValue:
        for key, value in self.attributes:
            if key == name:
                return value
        raise KeyError(f"{self.op} has no attribute {name!r}")

    def integer(self, name: str) -> int:
        value = self.attribute(name)
        if isinstance(value, int):
            return value
        raise TypeError(f"{name} of {self.op} is no integer: {value!r}")

    def integers(self, name: str) -> tuple[int, ...]:
        value = self.attribute(name)
        if isinstance(value, tuple):
            numbers = tuple(number for number in value if isinstance(number, int))
            if len(numbers) == len(value):
                return numbers
        raise TypeError(f"{name} of {self.op} are no integers: {value!r}")

    def real(self, name: str) -> float:
        value = self.attribute(name)
        if isinstance(value, float):
            return value
        raise TypeError(f"{name} of {self.op} is no float: {value!r}")

    def string(self, name: str) -> str:
        value = self.attribute(name)
        if isinstance(value, str):
            return value
        raise TypeError(f"{name} of {self.op} is no string: {value!r}")

    @cached_property
    def digest(self) -> str:
        """Return a content hash that is equal across processes for equal terms (32 hex digits)."""
        for node in walk((self,)):
            if "digest" not in node.__dict__:
                text = f"{node.op}|{node.attributes!r}|{node.type}|{'|'.join(i.digest for i in node.inputs)}"
                node.__dict__["digest"] = hashlib.sha256(text.encode()).hexdigest()[:32]
        return str(self.__dict__["digest"])

    def __repr__(self) -> str:
        return f"<{self.op} {self.type}>"


_interned: weakref.WeakValueDictionary[tuple[object, ...], Node] = weakref.WeakValueDictionary()
_making = threading.Lock()


def make(op: str, inputs: Iterable[Node], attributes: Attributes, type: TensorType) -> Node:
    """Return the one node with these parts (hash-consing)."""
    operands = tuple(inputs)
    key = (op, operands, repr(attributes), type)  # repr: 1, 1.0 and True are different attributes, and nan is one
    node = _interned.get(key)
    if node is None:
        with _making:  # kernels are planned while the e-graph grows
            node = _interned.get(key)
            if node is None:
                node = Node()
                node.op, node.inputs, node.attributes, node.type = op, operands, attributes, type
                _interned[key] = node
    return node


def placeholder(index: int, type: TensorType, *, constant: bool = False) -> Node:
    """Return the leaf that stands for a kernel's operand ``index``; ``constant`` operands are weights."""
    return make("Placeholder", (), (("constant", constant), ("index", index)), type)


def walk(roots: Iterable[Node]) -> Iterator[Node]:
    """Yield every node below ``roots`` once, operands before users, in a deterministic order."""
    seen: set[Node] = set()
    for root in roots:
        stack: list[tuple[Node, bool]] = [(root, False)]
        while stack:
            node, ready = stack.pop()
            if ready:
                yield node
            elif node not in seen:
                seen.add(node)
                stack.append((node, True))
                stack.extend((operand, False) for operand in reversed(node.inputs) if operand not in seen)


def placeholders(*roots: Node) -> list[Node]:
    """Return the placeholders below ``roots``, by index."""
    return sorted((node for node in walk(roots) if node.op == "Placeholder"), key=lambda node: node.integer("index"))


def rewrite(roots: Iterable[Node], change: Callable[[Node, tuple[Node, ...]], Node]) -> dict[Node, Node]:
    """Rebuild bottom-up: ``change(old, new_operands)`` returns each node's replacement."""
    new: dict[Node, Node] = {}
    for node in walk(roots):
        new[node] = change(node, tuple(new[operand] for operand in node.inputs))
    return new


def instantiate(fragment: Node, operands: Sequence[Node]) -> dict[Node, Node]:
    """Return the replacement of every node of a fragment if its placeholders become these operands."""

    def change(old: Node, inputs: tuple[Node, ...]) -> Node:
        return operands[old.integer("index")] if old.op == "Placeholder" else make(old.op, inputs, old.attributes, old.type)

    return rewrite((fragment,), change)


def bind(fragment: Node, operands: Sequence[Node]) -> Node:
    """Return the fragment with its placeholders replaced."""
    return instantiate(fragment, operands)[fragment]


def renumbered(fragment: Node) -> tuple[Node, tuple[int, ...]]:
    """Return the fragment with its placeholders numbered by first use, and their previous numbers.

    The results for parts are cached at the parts, so that a growing fragment costs one operator per step.
    """
    stack = [fragment]
    while stack:
        node = stack[-1]
        missing = [operand for operand in node.inputs if RENUMBERED not in operand.__dict__] if RENUMBERED not in node.__dict__ else []
        stack.extend(missing)
        if not missing:
            stack.pop()
            if RENUMBERED not in node.__dict__:
                new, numbers = _renumbered(node)
                node.__dict__[RENUMBERED] = new if new is not node else None, numbers  # a node that holds itself is never freed
    new, numbers = fragment.__dict__[RENUMBERED]
    return new or fragment, numbers


RENUMBERED = "renumbered"


def _renumbered(node: Node) -> tuple[Node, tuple[int, ...]]:
    if node.op == "Placeholder":
        return placeholder(0, node.type, constant=bool(node.attribute("constant"))), (node.integer("index"),)
    order: dict[int, int] = {}
    inputs = []
    for operand in node.inputs:
        part, numbers = operand.__dict__[RENUMBERED]
        places = tuple([order.setdefault(number, len(order)) for number in numbers])
        same = part or operand
        inputs.append(same if places == tuple(range(len(places))) else _relabelled(same, places))
    return make(node.op, inputs, node.attributes, node.type), tuple(order)


@lru_cache(maxsize=1 << 16)
def _relabelled(fragment: Node, places: tuple[int, ...]) -> Node:
    leaves = zip(places, placeholders(fragment), strict=True)
    return bind(fragment, [placeholder(place, leaf.type, constant=bool(leaf.attribute("constant"))) for place, leaf in leaves])


def format_attributes(attributes: Attributes) -> str:
    """Return ``{name=value,...}`` with values as Python writes them; an empty text if there are none."""
    return f"{{{','.join(f'{name}={value!r}' for name, value in attributes)}}}" if attributes else ""


def format_fragment(root: Node) -> str:
    """Return a fragment as one line of readable, canonical text: the profile database's key. ``text.parse_fragment`` reads it.

    ``Relu(Conv{group=1,...}(%0:float32[1,3,8,8], $1:float32[4,3,3,3]))``; ``%`` is a tensor, ``$`` a weight;
    a node used twice is named at its first use (``#2=...``).
    """
    uses: dict[Node, int] = {}
    for node in walk((root,)):
        for operand in node.inputs:
            uses[operand] = uses.get(operand, 0) + 1
    names: dict[Node, str] = {}

    def text(node: Node) -> str:
        if node.op == "Placeholder":
            return f"{'$' if node.attribute('constant') else '%'}{node.integer('index')}:{node.type}"
        if node in names:
            return names[node]
        body = f"{node.op}{format_attributes(node.attributes)}({', '.join(text(i) for i in node.inputs)})"
        if uses.get(node, 0) > 1:
            names[node] = f"#{len(names)}"
            return f"{names[node]}={body}"
        return body

    return text(root)
