"""Read rules from a user's Python file, which ends in ``RULES = (my_rule, ...)``."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from egraph.errors import RuleError
from egraph.rule import MergeRule, Rule


def load_rules(path: Path) -> tuple[Rule | MergeRule, ...]:
    """Import a Python file and return its ``RULES``."""
    if not path.is_file():
        raise RuleError(f"rule file {path} does not exist", fix="check the path")
    spec = importlib.util.spec_from_file_location(f"einsat_rules_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise RuleError(f"rule file {path} is not a Python file", fix="give a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # inspect.signature resolves annotations through it
    try:
        spec.loader.exec_module(module)
    except RuleError:
        raise
    except Exception as error:
        raise RuleError(f"rule file {path} raised {type(error).__name__}: {error}", where=str(path)) from error
    rules = getattr(module, "RULES", None)
    if not isinstance(rules, list | tuple) or not all(isinstance(rule, Rule | MergeRule) for rule in rules):
        raise RuleError(f"rule file {path} has no tuple RULES of rules", fix="end the file with RULES = (my_rule, ...)")
    return tuple(rules)
