"""The compiling process: reads batches of requests from standard input, writes object files, reports a line for each.

Apart from its parent, so that a crash or an endless loop of the compiler costs one kernel, and so that TVM is never
imported into a process that only runs programs.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from egraph.errors import EinsatError
from egraph.tensor import Node, TensorType, make, walk
from lower.eoperator.request import KernelRequest

FlatNode = tuple[str, tuple[int, ...], Any, str, Any]


def flatten(root: Node) -> list[FlatNode]:
    """Return a fragment as plain data, operands first."""
    order = {node: position for position, node in enumerate(walk((root,)))}
    return [(n.op, tuple(order[i] for i in n.inputs), n.attributes, n.type.dtype, n.type.shape) for n in order]


def restore(nodes: Sequence[FlatNode]) -> Node:
    """Return the fragment that ``flatten`` was given."""
    built: list[Node] = []
    for op, inputs, attributes, dtype, shape in nodes:
        built.append(make(op, [built[i] for i in inputs], attributes, TensorType(dtype, shape)))
    return built[-1]


def main() -> None:
    """Compile every request of the batches on standard input, until it ends; one JSON line each on standard output."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the compiler's own messages must not mix with the answers
    from lower.eoperator.generate import compile_object, generate

    while True:
        try:
            jobs, threads = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        for position, (nodes, output_strides, input_strides, path) in enumerate(jobs):
            error = ""
            partial = Path(f"{path}.{os.getpid()}.part.o")
            try:
                request = KernelRequest(restore(nodes), output_strides, input_strides)
                compile_object(generate(request, threads=threads), partial)
                os.replace(partial, path)
            except EinsatError as problem:
                error = problem.what
            except Exception as problem:
                error = f"{type(problem).__name__}: {str(problem).strip().splitlines()[-1] if str(problem).strip() else ''}"
            answers.write(json.dumps({"position": position, "error": error}) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
