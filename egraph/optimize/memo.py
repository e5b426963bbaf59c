"""Keep the program that a search led to, so that the same command again need not even saturate.

A shortcut and nothing more: the profile database says what was chosen and what was timed. A memo says which program that is,
as long as the model, the options, the libraries and the sources of this project are the same. It lies in the user's cache,
beside the compiled kernels.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from egraph.errors import EinsatError
from egraph.optimize.describe import environment
from egraph.optimize.options import Options
from egraph.optimize.outcome import Outcome
from egraph.optimize.output import write_beside
from egraph.optimize.remembered import BUDGETS
from egraph.optimize.sources import sources_digest
from egraph.tensor import AttributeValue, Graph, Kernel, Node, Program, TensorType, make, walk
from runtime.native import build

SOURCES = ("egraph", "lower", "runtime", "verify")
"""What decides which program a search leads to."""
SUFFIXES = (".py", ".c", ".json", ".j2")


@dataclass(frozen=True)
class Memo:
    """What a run led to. ``program``: what was shipped, not folded; None where that is the model as it was given."""

    outcome: Outcome
    program: Program | None
    search_key: str
    choices: str
    """A digest of what the search chose."""
    contenders: tuple[tuple[str, str], ...]
    """Name and digest of all that took part in the race."""


def memo_path(model_digest: str, device: str, options: Options) -> Path | None:
    """Return where the memo of a command lies; a user's rules are files that may be anything, so there is none with them."""
    if options.rule_files:
        return None
    stored = {name: value for name, value in options.stored().items() if name not in BUDGETS}
    sources = sources_digest(SOURCES, SUFFIXES)
    text = repr((model_digest, options.model.name, device, sorted(stored.items()), sorted(environment().items()), sources))
    return build.cache_folder() / "programs" / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"


def choices_digest(choices: str) -> str:
    return hashlib.sha256(choices.encode()).hexdigest()[:32]


def write_memo(path: Path, memo: Memo) -> None:
    """Write a memo; one that cannot be written is done without."""
    content = {
        "outcome": memo.outcome.to_manifest(), "program": memo.program and _program_rows(memo.program),
        "search_key": memo.search_key, "choices": memo.choices, "contenders": memo.contenders,
    }  # fmt: skip
    try:
        write_beside(path, json.dumps(content, separators=(",", ":")))
    except EinsatError:
        return


def read_memo(path: Path, graph: Graph) -> Memo | None:
    """Return the memo in a file about a model, None where there is none or it cannot be read."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        program = _program(raw["program"], graph) if raw["program"] else None
        contenders = tuple((str(name), str(digest)) for name, digest in raw["contenders"])
        return Memo(Outcome.from_manifest(raw["outcome"]), program, raw["search_key"], raw["choices"], contenders)
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError):
        return None


def _program_rows(program: Program) -> dict[str, Any]:
    """Return a program as JSON data: one row a node, operands before users; everything else by the numbers of nodes."""
    graph = program.graph
    kernels = [node for kernel in program.kernels for node in (kernel.fragment, *kernel.inputs, kernel.output)]
    nodes = list(walk([*kernels, *graph.roots, *graph.origins, *graph.names]))
    number = {node: place for place, node in enumerate(nodes)}
    return {
        "nodes": [
            [n.op, [number[i] for i in n.inputs], [[name, _plain(v)] for name, v in n.attributes], n.type.dtype, n.type.shape]
            for n in nodes
        ],
        "kernels": [
            [number[k.fragment], [number[i] for i in k.inputs], number[k.output], k.implementation, k.rules, k.cost_us, k.steps]
            for k in program.kernels
        ],
        "outputs": [[name, number[node]] for name, node in graph.outputs],
        "origins": [[number[node], names] for node, names in graph.origins.items()],
        "names": [[number[node], name] for node, name in graph.names.items()],
        "cost_us": program.cost_us,
        "rules": program.rules,
    }


def _program(raw: Mapping[str, Any], graph: Graph) -> Program:
    nodes: list[Node] = []
    for op, inputs, attributes, dtype, shape in raw["nodes"]:
        type = TensorType(dtype, None if shape is None else tuple(shape))
        nodes.append(make(op, (nodes[i] for i in inputs), tuple((name, _value(v)) for name, v in attributes), type))
        if op == "Constant":
            graph.tensors[nodes[-1].string("digest")]  # a KeyError where the model has other weights
    kernels = tuple(
        Kernel(nodes[fragment], tuple(nodes[i] for i in inputs), nodes[output], implementation, tuple(rules), cost_us, tuple(steps))
        for fragment, inputs, output, implementation, rules, cost_us, steps in raw["kernels"]
    )
    rebuilt = replace(
        graph,
        outputs=tuple((name, nodes[i]) for name, i in raw["outputs"]),
        origins={nodes[i]: tuple(names) for i, names in raw["origins"]},
        names={nodes[i]: name for i, name in raw["names"]},
    )
    return Program(rebuilt, kernels, raw["cost_us"], tuple(raw["rules"]))


def _plain(value: AttributeValue) -> Any:
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def _value(raw: Any) -> AttributeValue:
    if isinstance(raw, dict):
        return bytes.fromhex(raw["bytes"])
    found: AttributeValue = tuple(map(_value, raw)) if isinstance(raw, list) else raw
    return found
