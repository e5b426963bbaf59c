"""Put a whole ONNX model together: values by name, nodes in order, opaque nodes restored."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import onnx
from onnx import helper

from egraph.errors import LowerError
from egraph.onnx.exporter.emitter import Emitter, Names
from egraph.onnx.exporter.forms import emit
from egraph.onnx.exporter.store import Store
from egraph.onnx.importer.infer import NEWEST_IR
from egraph.onnx.importer.opaque import operand_name, rename, result_name
from egraph.onnx.importer.order import defined_names, graphs_inside, nodes_inside, subgraphs
from egraph.onnx.types import opaque_proto, to_proto
from egraph.tensor import Graph, Kernel, Node, OnnxContext, format_fragment, instantiate, walk

DOMAIN = "ai.einsat"
OLDEST_OPSET = 18
"""The oldest opset that the exporter writes, unless opaque nodes require another."""
NEWEST_OPSET = 26
"""The newest opset that the exporter writes: runtimes refuse opsets that they only know as under development."""


def _inner_names(node: onnx.NodeProto) -> set[str]:
    """Return every name defined inside a node's subgraphs; outer names must differ from them."""
    return {name for inside in subgraphs(node) for graph in graphs_inside(inside) for name in defined_names(graph)}


@dataclass
class Builder:
    """A model under construction."""

    graph: Graph
    store: Store
    emitter: Emitter
    rules: Mapping[Node, Sequence[str]]
    values: dict[Node, str] = field(default_factory=dict)
    results: dict[tuple[Node, int], str] = field(default_factory=dict)
    """Names of the results of opaque nodes."""
    functions: dict[str, onnx.FunctionProto] = field(default_factory=dict)
    preferred_names: dict[Node, str] = field(default_factory=dict)
    """Names that values should get: graph outputs first, then the source model's names."""

    @staticmethod
    def start(graph: Graph, nodes: Sequence[Node], store: Store, rules: Mapping[Node, Sequence[str]]) -> Builder:
        """Reserve the given names: inputs, outputs, names defined in subgraphs, the source's tensors."""
        opaque = [opaque_proto(node) for node in walk(nodes) if node.op == "Opaque"]
        names = Names(name for proto in opaque for name in _inner_names(proto))
        builder = Builder(graph, store, Emitter(target_opset(graph.context, opaque), names), rules)
        for node in graph.inputs:
            builder.values[node] = node.string("name")
            names.reserve(builder.values[node])
        for name, node in graph.outputs:
            names.reserve(name)
            if node.op not in ("Input", "Constant"):
                builder.preferred_names.setdefault(node, name)
        for node, name in graph.names.items():
            if node not in builder.preferred_names and node not in builder.values:
                builder.preferred_names[node] = names.fresh(name)
        return builder

    def name_for(self, node: Node) -> str:
        """Return the name that a value will get."""
        return self.preferred_names.get(node) or self.emitter.names.fresh(f"{self.emitter.label or node.op.lower()}_out")

    def describe(self, nodes: Sequence[Node], rules: Sequence[str]) -> None:
        """Set the source nodes and rules of the next ONNX nodes."""
        sources = list(dict.fromkeys(name for node in nodes for name in self.graph.origins.get(node, ())))
        self.emitter.label = sources[-1] if sources else ""
        self.emitter.metadata = {"einsat.rules": ";".join(rules), "einsat.source_nodes": ",".join(sources)}

    def value(self, node: Node) -> str:
        """Return the name of a value, appending the nodes that it needs."""
        for below in self._missing(node):
            self.describe([below], self.rules.get(below, ()))
            self.values[below] = self._compute(below, [self.values[operand] for operand in below.inputs])
        return self.values[node]

    def _missing(self, root: Node) -> list[Node]:
        order: list[Node] = []
        stack, seen = [(root, False)], set(self.values)
        while stack:
            node, ready = stack.pop()
            if ready:
                order.append(node)
            elif node not in seen:
                seen.add(node)
                stack.append((node, True))
                stack.extend((operand, False) for operand in reversed(node.inputs))
        return order

    def _compute(self, node: Node, operands: Sequence[str]) -> str:
        match node.op:
            case "Input" | "Placeholder":
                what = f"{node.op} {node.attributes} is not an input of the graph"
                raise LowerError(what, where=self.graph.name, fix="report this model")
            case "Constant":
                array = self.graph.tensors[node.string("digest")]
                name = self.preferred_names.get(node) or self.emitter.names.fresh("weight")
                self.emitter.initializers.append(self.store.tensor(array, name))
                return name
            case "Opaque":
                self.restore(node, node, operands)
                return ""
            case "OpaqueOutput":
                return self.results[node.inputs[0], node.integer("index")]
            case _:
                name = self.name_for(node)
                emit(self.emitter, node, operands, name)
                return name

    def restore(self, node: Node, key: Node, operands: Sequence[str]) -> None:
        """Append an opaque node unchanged, over the given operand names; its results are recorded under ``key``."""
        proto = opaque_proto(node)
        named = {r.integer("index"): name for r, name in self.preferred_names.items() if r.op == "OpaqueOutput" and r.inputs[0] is key}
        results = {}
        for index, name in enumerate(proto.output):
            if name:
                fresh = named.get(index) or self.emitter.names.fresh(f"{self.emitter.label or proto.op_type.lower()}_out_{index}")
                results[result_name(index)] = self.results[key, index] = fresh
        rename(proto, {operand_name(index): name for index, name in enumerate(operands)}, results)
        if proto.name:
            self.emitter.names.reserve(proto.name)
        self.emitter.append(proto)

    def kernel(self, kernel: Kernel) -> None:
        """Append one kernel: an eOperator as a node with a function body, anything else as standard nodes."""
        operands = [self.value(node) for node in kernel.inputs]
        inside = instantiate(kernel.fragment, kernel.inputs)
        self.describe([*(inside[node] for node in inside if node.op != "Placeholder"), kernel.output], kernel.rules)
        fragment = kernel.fragment
        if fragment.op == "Opaque":
            by_position = [operands[leaf.integer("index")] for leaf in fragment.inputs]  # two operands may be the same tensor
            self.restore(fragment, kernel.output, by_position)
            self.values[kernel.output] = ""
            return
        if fragment.op == "OpaqueOutput":
            self.values[kernel.output] = self.results[kernel.inputs[0], fragment.integer("index")]
            return
        if fragment.op == "Placeholder":
            self.values[kernel.output] = self.values[kernel.inputs[0]]
            return
        output = self.name_for(kernel.output)
        steps = [node for node in walk((fragment,)) if node.op != "Placeholder"]
        if kernel.implementation.is_generated and (len(steps) > 1 or fragment.op == "Expression"):
            function = self._function(fragment, len(operands))
            self.emitter.add(function.name, operands, output=output, domain=DOMAIN)
        else:
            emit_fragment(self.emitter, fragment, operands, output)
        self.values[kernel.output] = output

    def _function(self, fragment: Node, count: int) -> onnx.FunctionProto:
        """Return the function of a fragment; equal fragments share one."""
        text = format_fragment(fragment)
        name = f"Fused{hashlib.sha256(text.encode()).hexdigest()[:12]}"
        if name not in self.functions:
            operands = [f"operand_{index}" for index in range(count)]
            body = Emitter(self.emitter.opset, Names([*operands, "result"]), in_function=True)
            emit_fragment(body, fragment, operands, "result")
            self.functions[name] = helper.make_function(
                DOMAIN, name, operands, ["result"], body.nodes, [helper.make_opsetid("", self.emitter.opset)], doc_string=text
            )
        return self.functions[name]

    def finish(self) -> onnx.ModelProto:
        """Name the outputs and return the model."""
        outputs = []
        self.emitter.label, self.emitter.metadata = "", {}
        for name, node in self.graph.outputs:
            source = self.value(node)
            if source != name:
                self.emitter.add("Identity", [source], output=name)
            outputs.append(onnx.ValueInfoProto(name=name, type=to_proto(node.type)))
        inputs = [onnx.ValueInfoProto(name=self.values[node], type=to_proto(node.type)) for node in self.graph.inputs]
        graph = helper.make_graph(self.emitter.nodes, self.graph.name or "graph", inputs, outputs, self.emitter.initializers)
        listed = {v.name for v in (*inputs, *outputs)} | {t.name for t in self.emitter.initializers}
        graph.value_info.extend(
            onnx.ValueInfoProto(name=name, type=to_proto(node.type))
            for node, name in self.values.items() if name and name not in listed and node.type.shape is not None
        )
        opsets = {**dict(self.graph.context.opsets), "": self.emitter.opset, **({DOMAIN: 1} if self.functions else {})}
        model = helper.make_model(
            graph, producer_name="einsat", ir_version=min(max(self.graph.context.ir_version, 10), NEWEST_IR),
            opset_imports=[helper.make_opsetid(domain, version) for domain, version in sorted(opsets.items())],
        )
        model.functions.extend(onnx.FunctionProto.FromString(data) for data in self.graph.context.functions)
        model.functions.extend(self.functions[name] for name in sorted(self.functions))
        return model


def emit_fragment(emitter: Emitter, fragment: Node, operands: Sequence[str], output: str) -> None:
    """Append a fragment's nodes over the operands' names."""
    names: dict[Node, str] = {}
    for node in walk((fragment,)):
        if node.op == "Placeholder":
            names[node] = operands[node.integer("index")]
            continue
        names[node] = output if node is fragment else emitter.names.fresh(f"{emitter.label or node.op.lower()}_inner")
        emit(emitter, node, [names[operand] for operand in node.inputs], names[node])


def target_opset(context: OnnxContext, opaque: Iterable[onnx.NodeProto]) -> int:
    """Return an opset in which every opaque node means what it meant in the source model."""
    source = dict(context.opsets).get("", OLDEST_OPSET)
    if OLDEST_OPSET <= source <= NEWEST_OPSET or context.functions:
        return source
    nodes = [inner for node in opaque for inner in nodes_inside(node)]
    versions = (OLDEST_OPSET,) if source < OLDEST_OPSET else range(NEWEST_OPSET, OLDEST_OPSET - 1, -1)
    return next((version for version in versions if not any(_changed(node, source, version) for node in nodes)), source)


def _changed(node: onnx.NodeProto, source: int, target: int) -> bool:
    """Return whether the operator has another definition in the target opset."""
    if node.domain not in ("", "ai.onnx"):
        return False
    try:
        versions = {onnx.defs.get_schema(node.op_type, version, "").since_version for version in (source, target)}
    except onnx.defs.SchemaError:
        return True
    return len(versions) > 1
