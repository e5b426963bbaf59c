"""Write an equation as a rule in the rule language: readable text, the guards that its context needs, and the rule itself."""

from __future__ import annotations

import linecache
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import egraph.rule as rule_language
from egraph import rule_operators
from egraph.rule import Binding, Rounding, Rule
from egraph.tensor import TensorType
from verify.generate.terms import Application, Equation, Term, applications, attributes_of, length_in, variables
from verify.generate.writer import FUNCTIONS, Guard, Writer

_LANGUAGE = ("Attributes", "Equation", "Steps", "Tensor", "operation", "require")


@dataclass(frozen=True)
class Draft:
    """A direction of an equation as a rule; ``guards`` are all conditions of its context that the left side does not require."""

    name: str
    left: str
    right: str
    tensors: tuple[str, ...]
    bundles: tuple[str, ...]
    guards: tuple[Guard, ...]
    equation: Equation
    of_bundles: tuple[Application, ...]
    """For each attribute variable, an application on the left side that has these attributes."""

    def binding(self, lengths: Mapping[str, int]) -> Binding:
        """Return the match with the context's own types and attributes, for extents of these lengths."""
        context, length = self.equation.context, length_in(lengths)
        shapes = [tuple(map(length, context[variable])) for variable in variables(self.equation.left)]
        types = {name: TensorType("float32", shape) for name, shape in zip(self.tensors, shapes, strict=True)}
        bundles = zip(self.bundles, self.of_bundles, strict=True)
        return Binding(types, {name: attributes_of(application, context, lengths) for name, application in bundles})

    def text(self, guards: Sequence[Guard], rounding: Rounding) -> str:
        """Return the rule's Python text with these guards."""
        decorator = "@rule" if rounding == "exact" else f'@rule(rounding="{rounding}")'
        parameters = [f"{name}: Tensor" for name in self.tensors] + [f"{name}: Attributes" for name in self.bundles]
        head = f"{decorator}\ndef {self.name}({', '.join(parameters)}) -> "
        title = f'    """{_plain(self.left)} = {_plain(self.right)}"""\n'
        if not guards and "shape[" not in self.right and not any(f"{bundle}." in self.right for bundle in self.bundles):
            return f"{head}Equation:\n{title}    return {self.left} == {self.right}\n"
        lines = [f"    yield {self.left}", *(f"    {guard}" for guard in guards), f"    yield {self.right}"]
        return f"{head}Steps:\n{title}" + "\n".join(lines) + "\n"


def _plain(text: str) -> str:
    return text.replace(", a=", "; ").replace("slice_(", "slice(")


HEADER = '''"""Rules found by enumeration and proved: {title}

Made by `{command}`.
"""

from __future__ import annotations

{imports}
'''


def module_text(texts: Sequence[str], names: Sequence[str], title: str, command: str) -> str:
    """Return the text of a rule file: imports, rules, and ``RULES``."""
    body = "\n\n".join(texts)
    language = [name for name in _LANGUAGE if re.search(rf"\b{name}\b", body)]
    functions = sorted({name for name in [*FUNCTIONS.values()] if f"{name}(" in body})
    imports = [f"from egraph.rule import {', '.join([*language, 'rule'])}"]
    imports += [f"from egraph.rule_operators import {', '.join(functions)}"] if functions else []
    listed = "".join(f"    {name},\n" for name in names)
    return HEADER.format(title=title, command=command, imports="\n".join(imports)) + f"\n\n{body}\n\nRULES = (\n{listed})\n"


def compile_rule(draft: Draft, guards: Sequence[Guard], rounding: Rounding) -> Rule:
    """Return the rule of the text; its source can be inspected like that of a rule in a file."""
    text = draft.text(guards, rounding)
    name = f"<generated {draft.name}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    namespace = {**vars(rule_operators), **{name: getattr(rule_language, name) for name in (*_LANGUAGE, "rule")}}
    namespace["__name__"] = __name__
    exec(compile(text, name, "exec", dont_inherit=True), namespace)
    result = namespace[draft.name]
    assert isinstance(result, Rule)
    return result


def draft(equation: Equation, name: str) -> Draft:
    """Return the rule ``equation.left -> equation.right``, without chosen guards."""
    writer = Writer(equation)
    left = writer.side(equation.left, on_the_left=True)
    guards = tuple(writer.guards())
    right = writer.side(equation.right, on_the_left=False)
    return Draft(
        name, left, right, tuple(writer.names.values()), tuple(writer.bundles.values()), guards, equation, tuple(writer.of_bundles.values())
    )


def title(equation: Equation, taken: frozenset[str] | set[str]) -> str:
    """Return an unused rule name, made from the left side and the right side."""
    base = f"{_skeleton(equation.left)}_to_{_skeleton(equation.right)}"
    numbered = (f"{base}_{number}" for number in range(2, len(taken) + 3))
    return base if base not in taken else next(name for name in numbered if name not in taken)


def _skeleton(term: Term) -> str:
    if isinstance(term, int):
        return "operand"
    operators = [application.production.op for application in applications(term)]
    return "_".join(FUNCTIONS.get(op, op.lower()).strip("_") for op in reversed(operators))
