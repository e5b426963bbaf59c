"""Read rules from a user's Python file, which ends in ``RULES = (my_rule, ...)``."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from pathlib import Path

from egraph.errors import RuleError
from egraph.rule import MergeRule, Rule
from egraph.rule_source import check_source


def load_rules(path: Path) -> tuple[Rule | MergeRule, ...]:
    """Import a Python file and return its ``RULES``."""
    if not path.is_file():
        raise RuleError(f"rule file {path} {'is a folder' if path.is_dir() else 'does not exist'}", fix="check the path")
    check_source(path)
    spec = importlib.util.spec_from_file_location(f"einsat_rules_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise RuleError(f"rule file {path} is not a Python file", fix="give a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # inspect.signature resolves annotations through it
    try:
        spec.loader.exec_module(module)
    except RuleError as error:
        raise RuleError(error.what, where=error.where or f"{path}:{_line(error, path)}", fix=error.fix) from error
    except Exception as error:  # the user's own code may raise anything
        raise RuleError(
            f"rule file {path} raised {type(error).__name__}: {error}", where=f"{path}:{_line(error, path)}",
            fix=f"correct the file until python {path} runs",
        ) from error  # fmt: skip
    rules = getattr(module, "RULES", None)
    if not isinstance(rules, list | tuple) or not all(isinstance(rule, Rule | MergeRule) for rule in rules):
        raise RuleError(f"rule file {path} has no tuple RULES of rules", where=str(path), fix="end the file with RULES = (my_rule, ...)")
    return tuple(rules)


def _line(error: Exception, path: Path) -> int:
    """Return the line of a file at which it stopped, 1 where it was not read so far."""
    own = str(path.absolute())
    if isinstance(error, SyntaxError) and error.filename == own:
        return error.lineno or 1
    lines = [frame.lineno or 1 for frame in traceback.extract_tb(error.__traceback__) if frame.filename == own]
    return lines[-1] if lines else 1
