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
import time
from importlib import import_module
from pathlib import Path

from egraph.errors import EinsatError
from egraph.tensor.text import parse_fragment
from lower.eoperator.request import KernelRequest


def load_generator() -> None:
    """Import the code generator without PyTorch, which TVM imports where it is installed: that takes twice as long as TVM itself."""
    vars(sys)["modules"]["torch"] = None  # Python's way to say that a module cannot be imported
    import_module("lower.targets.cpu.generator.generate")


def main() -> None:
    """Compile every request of the batches on standard input, until it ends; one JSON line each on standard output.

    An empty line before them says that the code generator is loaded. A request's line has the seconds that compiling took.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the compiler's own messages must not mix with the answers
    load_generator()
    from lower.targets.cpu.generator.generate import compile_object, generate

    answers.write("\n")
    answers.flush()
    while True:
        try:
            jobs, threads = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        for position, (fragment, output_strides, input_strides, path) in enumerate(jobs):
            error, started = "", time.perf_counter()
            partial = Path(f"{path}.{os.getpid()}.part.o")
            try:
                request = KernelRequest(parse_fragment(fragment), output_strides, input_strides)
                compile_object(generate(request, threads=threads), partial)
                os.replace(partial, path)
            except EinsatError as problem:
                error = problem.what
            except Exception as problem:
                error = f"{type(problem).__name__}: {str(problem).strip().splitlines()[-1] if str(problem).strip() else ''}"
            answers.write(json.dumps({"position": position, "error": error, "seconds": time.perf_counter() - started}) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
