"""Graphs and programs as text: one line per value, in the order in which values are computed.

    graph 'small' ir_version=10 opsets=(('', 20),) {
      %0 = input 'x' : float32[1,8]
      %1 = constant '5f0c...' : float32[2] data=(0.5, 1.0)
      %2 = Gather{axis=1}(%0, %1) : float32[1,2] origins=('gather_7',) name='picked'
      output 'y' = %2
    }

A program has the same form, headed ``program``, with a line for each kernel, in execution order:

      kernel %2 = Relu(%0:float32[1,2])(%1) by='onednn.eltwise' cost_us=3.5 rules=('relu_twice',)

Constants of a few elements carry their data; the data of others is supplied separately, by digest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from egraph.tensor.frozen import ENode
from egraph.tensor.graph import Graph, Kernel, OnnxContext, Program
from egraph.tensor.implementation import Implementation
from egraph.tensor.node import Node, bind, format_attributes, format_fragment, make, placeholders, walk
from egraph.tensor.text.reader import NAME, WORD, Reader
from egraph.tensor.types import TensorType, numpy_dtype

INLINE_ELEMENTS = 16
"""The most elements of a constant that is written with its data."""


def format_graph(graph: Graph) -> str:
    """Return a graph as text, without the data of large constants."""
    names = value_names(graph)
    return "\n".join([_head("graph", graph), *_values(graph, names), *_outputs(graph, names), "}"]) + "\n"


def format_program(program: Program) -> str:
    """Return a program as text, without the data of large constants."""
    graph, kernels = program.graph, program.kernels
    names = value_names(graph, (node for kernel in kernels for node in (*kernel.inputs, kernel.output)))
    rules = f"rules={program.rules!r} " if program.rules else ""
    lines = [_head("program", graph, f"cost_us={program.cost_us!r} {rules}"), *_values(graph, names)]
    for kernel in kernels:
        operands = ", ".join(names[node] for node in kernel.inputs)
        seen = f" source_range={kernel.source_range!r}" if kernel.source_range else ""
        fields = f"by={kernel.implementation.text!r} cost_us={kernel.cost_us!r}{format_reasons(kernel)}{seen}"
        lines.append(f"  kernel {names[kernel.output]} = {format_fragment(kernel.fragment)}({operands}) {fields}")
    return "\n".join([*lines, *_outputs(graph, names), "}"]) + "\n"


def value_names(graph: Graph, more: Iterable[Node] = ()) -> dict[Node, str]:
    """Return a name for every value of a graph, ``%0`` and so on: inputs first, operands before users.

    Values that only have a name or an origin come last, in an order that depends only on them.
    """
    used = dict.fromkeys(walk([*graph.inputs, *more, *graph.roots]))
    unused = sorted({*graph.origins, *graph.names}.difference(used), key=lambda node: node.digest)
    return {node: f"%{number}" for number, node in enumerate(dict.fromkeys([*used, *walk(unused)]))}


def format_reasons(reasoned: Kernel | ENode) -> str:
    """Return the rules that justify a kernel or an e-node, and the steps that lead to it, if there are any."""
    return "".join(f" {name}={value!r}" for name in ("rules", "steps") if (value := getattr(reasoned, name)))


def _values(graph: Graph, names: Mapping[Node, str]) -> Iterator[str]:
    for node, name in names.items():
        fields = f" origins={graph.origins[node]!r}" if node in graph.origins else ""
        fields += f" name={graph.names[node]!r}" if node in graph.names else ""
        yield f"  {name} = {_value(node, graph, names)}{fields}"


def _outputs(graph: Graph, names: Mapping[Node, str]) -> Iterator[str]:
    return (f"  output {name!r} = {names[node]}" for name, node in graph.outputs)


def _head(kind: str, graph: Graph, fields: str = "") -> str:
    context = graph.context
    functions = f"functions={context.functions!r} " if context.functions else ""
    return f"{kind} {graph.name!r} {fields}ir_version={context.ir_version!r} opsets={context.opsets!r} {functions}{{"


def _value(node: Node, graph: Graph, names: Mapping[Node, str]) -> str:
    values = dict(node.attributes)
    if node.op == "Input" and list(values) == ["name"] and node in graph.inputs:
        return f"input {values['name']!r} : {node.type}"
    if node.op == "Constant" and list(values) == ["digest"]:
        data = _data(graph.tensors.get(str(values["digest"])), node.type)
        return f"constant {values['digest']!r} : {node.type}{data}"
    return f"{node.op}{format_attributes(node.attributes)}({', '.join(names[i] for i in node.inputs)}) : {node.type}"


def _data(array: np.ndarray | None, type: TensorType) -> str:
    """Return `` data=(...)`` if an array is small and its text gives the same bits again."""
    if array is None or array.size > INLINE_ELEMENTS:
        return ""
    try:
        values = tuple(map(_plain, array.reshape(-1)))
        parsed = _array(values, type)
    except (TypeError, ValueError, OverflowError):
        return ""
    is_same = parsed.tolist() == array.tolist() if array.dtype == np.object_ else parsed.tobytes() == array.tobytes()
    return f" data={values!r}" if is_same and parsed.dtype == array.dtype else ""


def _plain(element: Any) -> Any:
    """Return an element as a Python value with a short text, such as ``0.1`` for a float32."""
    if isinstance(element, np.floating):
        return float(str(element))
    value = element.item() if isinstance(element, np.generic) else element
    if not isinstance(value, bool | int | float | str | bytes):
        raise TypeError(f"{type(value).__name__} has no text")
    return value


def _array(values: Sequence[Any], type: TensorType) -> np.ndarray:
    return np.array(values, numpy_dtype(type.dtype)).reshape(type.sizes)


def parse_graph(text: str, tensors: Mapping[str, np.ndarray] | None = None, name: str = "") -> Graph:
    """Return the graph of a text; ``tensors``: data of constants by digest. A constant without data there or in the text has none."""
    reader = Reader(text, name)
    graph = read_graph(reader, tensors or {})
    reader.end()
    return graph


def parse_program(text: str, tensors: Mapping[str, np.ndarray] | None = None, name: str = "") -> Program:
    """Return the program of a text, as :func:`parse_graph` returns a graph."""
    reader = Reader(text, name)
    program = read_program(reader, tensors or {})
    reader.end()
    return program


def read_graph(reader: Reader, tensors: Mapping[str, np.ndarray]) -> Graph:
    """Read a graph; the text that follows can name its values."""
    reader.expect("graph")
    return _Block(reader, tensors).read(may_have_kernels=False).graph


def read_program(reader: Reader, tensors: Mapping[str, np.ndarray]) -> Program:
    reader.expect("program")
    return _Block(reader, tensors).read(may_have_kernels=True)


class _Block:
    """The part of a graph or program that has been read so far."""

    def __init__(self, reader: Reader, tensors: Mapping[str, np.ndarray]) -> None:
        self.reader, self.available = reader, tensors
        self.tensors: dict[str, np.ndarray] = {}
        self.inputs: list[Node] = []
        self.outputs: list[tuple[str, Node]] = []
        self.origins: dict[Node, tuple[str, ...]] = {}
        self.names: dict[Node, str] = {}
        self.kernels: list[Kernel] = []

    def read(self, *, may_have_kernels: bool) -> Program:
        reader = self.reader
        reader.nodes = {}
        name = reader.string()
        names = reader.tuple_of(reader.string)
        more: dict[str, Callable[[], object]] = {"cost_us": reader.real, "rules": names} if may_have_kernels else {}
        opset = reader.tuple_of(self.opset)
        fields = reader.fields(**more, ir_version=reader.integer, opsets=opset, functions=reader.tuple_of(reader.data))
        cost_us, rules = fields.pop("cost_us", 0.0), fields.pop("rules", ())
        reader.expect("{")
        while not reader.accept("}"):
            if reader.sees("%"):
                self.value()
            elif (word := reader.peek(WORD)) == "output":
                reader.take(WORD, "")
                output = reader.string()
                reader.expect("=")
                self.outputs.append((output, reader.term()))
            elif word == "kernel" and may_have_kernels:
                self.kernel()
            else:
                raise reader.expected(f"%NAME = VALUE, output{', kernel' if may_have_kernels else ''} or '}}'")
        graph = Graph(name, tuple(self.inputs), tuple(self.outputs), self.tensors, self.origins, OnnxContext(**fields), self.names)
        return Program(graph, tuple(self.kernels), cost_us, rules)

    def opset(self) -> tuple[str, int]:
        self.reader.expect("(")
        domain = self.reader.string()
        self.reader.expect(",")
        version = self.reader.integer("a version")
        self.reader.expect(")")
        return domain, version

    def value(self) -> None:
        reader = self.reader
        start = reader.start()
        reader.expect("%")
        name = "%" + reader.take(NAME, "a name")
        if name in reader.nodes:
            raise reader.error(f"{name} is defined twice", start)
        reader.expect("=")
        word = reader.peek(WORD)
        readers: dict[str, Callable[[], object]] = {"origins": reader.tuple_of(reader.string), "name": reader.string}
        if word in ("input", "constant"):
            reader.take(WORD, "")
            label = reader.string()
            reader.expect(":")
            type = reader.type()
            op, attribute = ("Input", "name") if word == "input" else ("Constant", "digest")
            node = make(op, (), ((attribute, label),), type)
        else:
            node = reader.term()
        if word == "constant":
            readers["data"] = reader.tuple_of(reader.value)
        elif word == "input":
            if node in self.inputs:
                raise reader.error(f"input {label!r} is defined twice", start)
            self.inputs.append(node)
        reader.nodes[name] = node
        fields = reader.fields(**readers)
        self.origins |= {node: fields["origins"]} if "origins" in fields else {}
        self.names |= {node: fields["name"]} if "name" in fields else {}
        if word == "constant":
            self.constant(label, type, fields.get("data"), start)

    def constant(self, digest: str, type: TensorType, data: tuple[Any, ...] | None, start: int) -> None:
        array = self.available.get(digest)
        if data is not None:
            try:
                array = _array(data, type)
            except (TypeError, ValueError, OverflowError) as error:
                raise self.reader.error(f"the data is none of {type}: {error}", start) from error
        if array is not None and (array.dtype != numpy_dtype(type.dtype) or array.shape != type.shape):
            raise self.reader.error(f"the data of constant {digest!r} is {array.dtype}{list(array.shape)}, not {type}", start)
        if array is not None:
            self.tensors[digest] = array

    def kernel(self) -> None:
        reader = self.reader
        reader.take(WORD, "")
        start = reader.position
        output = reader.term()
        reader.expect("=")
        values, reader.nodes = reader.nodes, {}
        fragment = reader.term(output.type)
        reader.nodes = values
        reader.expect("(")
        inputs = reader.listed(")", reader.term)
        names = reader.tuple_of(reader.string)
        ranges = reader.tuple_of(reader.real)
        fields = reader.fields(by=reader.string, cost_us=reader.real, rules=names, steps=names, source_range=ranges)
        if any(node.integer("index") >= len(inputs) for node in placeholders(fragment)):
            raise reader.error(f"the kernel reads more operands than the {len(inputs)} that it is given", start)
        if bind(fragment, inputs) is not output:
            raise reader.error("the kernel computes another value than the one that it is said to", start)
        implementation = Implementation.parse(fields.pop("by", ""))
        self.kernels.append(Kernel(fragment, tuple(inputs), output, implementation, **fields))
