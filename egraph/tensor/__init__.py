"""The graph language: types, hash-consed nodes, graphs, programs, frozen e-graphs."""

from egraph.tensor.frozen import Candidate, ENode, FrozenEGraph, Selection
from egraph.tensor.graph import INVERTIBLE_MOVES, Graph, Kernel, OnnxContext, Program
from egraph.tensor.implementation import ELEMENT_TYPES, OPAQUE, PLAIN, VIEW, Implementation, Target
from egraph.tensor.node import (
    LEAVES,
    TUPLE,
    Node,
    bind,
    format_fragment,
    instantiate,
    make,
    placeholder,
    placeholders,
    renumbered,
    rewrite,
    walk,
)  # fmt: skip
from egraph.tensor.types import Attributes, AttributeValue, Dim, TensorType, attributes, numpy_dtype

__all__ = [
    "ELEMENT_TYPES", "INVERTIBLE_MOVES", "LEAVES", "OPAQUE", "PLAIN", "TUPLE", "VIEW", "AttributeValue", "Attributes", "Candidate",
    "Dim", "ENode", "FrozenEGraph", "Graph", "Implementation", "Kernel", "Node", "OnnxContext", "Program", "Selection", "Target",
    "TensorType", "attributes", "bind", "format_fragment", "instantiate", "make", "numpy_dtype", "placeholder", "placeholders",
    "renumbered", "rewrite", "walk",
]  # fmt: skip
