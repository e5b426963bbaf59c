"""The command: run it, and turn errors into an exit code and one clear message."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from egraph.optimize import interruption


def main() -> int:
    """Run the command line; return its exit code."""
    interruption.install()
    try:
        return _run()
    except KeyboardInterrupt:
        exec("")  # resets CPython's record of an unhandled interrupt, which would end the process by a signal instead of the exit code
        print("interrupted: nothing was written; the profile database keeps what was measured", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 0


def _run() -> int:
    with interruption.deferred():  # imports are slow enough to be interrupted
        from egraph.errors import CheckFailed, EinsatError
        from egraph.optimize.arguments import parse, to_options
        from runtime.errors import ExecutionError

    arguments = parse(None)
    try:
        if arguments.list_rules:
            from egraph.optimize.admission import list_rules

            print(list_rules(tuple(arguments.rules)))
            return 0
        if "help" in arguments.policy:
            from egraph.policy import listing

            print(listing())
            return 0
        options = to_options(arguments)
        with interruption.deferred():
            import onnxruntime  # noqa: F401 - every run checks with it; loaded later, it would be open to Ctrl-C

            from egraph.optimize.command import run, run_export, run_stages

        with interruption.heeded():
            if arguments.export_jobs:
                return run_export(options, arguments.export_jobs)
            return run_stages(options, arguments.to) if arguments.to else run(options)
    except CheckFailed as error:
        print(f"check failed: {error}\nnothing was written", file=sys.stderr)
        return 3
    except (EinsatError, ExecutionError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def leave(code: int) -> NoReturn:
    """End the process at once, because freeing a search's objects one by one takes most of a second."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:
        pass
    os._exit(code)


if __name__ == "__main__":
    leave(main())
