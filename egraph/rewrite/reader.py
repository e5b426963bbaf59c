"""Read Python text as the rule language; refuse everything else with its line, the reason and what to write instead.

A proof runs a rule's function on symbolic sizes and trusts that it is the same mathematics on plain integers. So Python never runs a
rule's function: it is read once, here, and ``egraph.rewrite.evaluator`` gives every construct its one meaning. A construct that is
not listed here has no meaning.
"""

from __future__ import annotations

import ast
import builtins
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NoReturn

from egraph.errors import RuleError
from egraph.rewrite import syntax
from egraph.rewrite.library import BUILTINS, MODULES
from egraph.tensor.ops import OPS

BY_VALUE = "ask for values: x.rank == 2, x.shape[0] == 1, a.layout == 'NCHW'"
STATE = "what a rule does depends on its arguments alone, not on earlier calls"
PLAIN = "write it as assignments, if, for, require(...) and calls of functions"
NOT_LISTED = "a rule's function is read by this project, not run by Python, and this is no part of its language"

FIELDS = frozenset({
    "shape", "rank", "type", "number", "elements", "dtype", "sizes", "values", "but", "reshape", "transpose", "append", "extend", "pop",
    "index", "count", "from_iterable",
})  # fmt: skip
"""Names that may follow a dot, besides operators' attributes and names of modules."""
NAMES_OF_FUNCTIONS = frozenset({"__name__", "__doc__"})
"""Attributes of functions that code which makes rules may set."""

_ARITHMETIC: Mapping[type[ast.operator], syntax.ArithmeticOperator] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**", ast.MatMult: "@",
}  # fmt: skip
_COMPARISONS: Mapping[type[ast.cmpop], syntax.Comparison] = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.In: "in", ast.NotIn: "not in",
    ast.Is: "is", ast.IsNot: "is not",
}  # fmt: skip
_REASONS: Mapping[type[ast.AST], tuple[str, str, str]] = {
    ast.Try: ("try", "what a symbolic size refuses would be taken for an answer, and plain sizes refuse nothing",
              "ask first: require(...) refuses a match, `if` chooses"),
    ast.With: ("with", NOT_LISTED, PLAIN),
    ast.Global: ("global", STATE, "make a new value in each call and return it"),
    ast.Nonlocal: ("nonlocal", STATE, "make a new value in each call and return it"),
    ast.ClassDef: ("class", NOT_LISTED, "return tuples from functions"),
    ast.AsyncFunctionDef: ("async", "a rule is a function of its arguments", "write a plain function"),
    ast.Match: ("match", NOT_LISTED, "compare with == in `if`"),
    ast.NamedExpr: (":=", "a value that is bound inside of a condition", "assign it before"),
    ast.Raise: ("raise", NOT_LISTED, "require(False, ...) refuses a match"),
    ast.Delete: ("del", NOT_LISTED, "make a new value"),
    ast.YieldFrom: ("yield from", "a rule yields its left and then its right side", "yield each side"),
    ast.Await: ("await", "a rule is a function of its arguments", "write a plain function"),
}  # fmt: skip
_KINDS = "a size is a symbol in a proof and a plain number at a match, and this can tell them apart"
_TEXTS = "a size reads otherwise in a proof"
_WORLD = "a rule neither reads nor writes nor runs anything else"
_BY_NAME: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(("type", "isinstance", "issubclass", "callable", "getattr", "setattr", "delattr", "hasattr", "dir", "vars"),
                    (_KINDS, BY_VALUE)),
    **dict.fromkeys(("str", "repr", "format", "ascii", "bytes", "bytearray", "chr", "ord"),
                    (_TEXTS, "compare numbers; f-strings may stand in the reason of require(...)")),
    **dict.fromkeys(("id", "hash"), ("it differs from run to run, and in a proof", "compare values with ==")),
    **dict.fromkeys(("iter", "filter", "dict", "frozenset", "pow", "round", "divmod", "float", "object", "slice", "super", "property",
                     "staticmethod", "classmethod", "complex"), (NOT_LISTED, f"what there is: {', '.join(sorted(BUILTINS))}")),
}  # fmt: skip


def read_module(text: str | bytes, path: str) -> tuple[syntax.Statement, ...]:
    """Return the statements of a rule file; a refused statement binds its names to the refusal. Raise ``RuleError`` for broken text."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        raise RuleError(f"rule file {path} is not Python: {error}", where=f"{path}:{line}", fix="correct the line") from error
    reader = _Reader(path, tree)
    reader.modules = {alias.asname or alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    return tuple(kept for each in tree.body for kept in reader.statements(each))


def read_function(node: ast.FunctionDef | ast.Lambda, path: str) -> syntax.Function:
    """Return a function; raise ``RuleError`` for the first construct in it that is not part of the language."""
    return _Reader(path, node).function(node)


class _Reader:
    def __init__(self, path: str, tree: ast.AST) -> None:
        self.path, self.tree = path, tree
        self.modules: set[str] = set()
        """Names of modules; any member of theirs may follow a dot."""

    def refuse(self, node: ast.AST, construct: str, why: str, fix: str) -> NoReturn:
        raise RuleError(f"{construct}: {why}", where=f"{self.path}:{getattr(node, 'lineno', 1)}", fix=fix)

    def not_listed(self, node: ast.AST) -> NoReturn:
        self.refuse(node, *_REASONS.get(type(node), (_named(node), NOT_LISTED, PLAIN)))

    # Statements

    def statements(self, node: ast.stmt) -> Iterator[syntax.Statement]:
        """Yield the statement, or its refusal; the names that a refused statement binds may not be used."""
        try:
            yield from self.statement(node)
        except RuleError as error:
            what, _, why = error.what.partition(": ")
            line = int(error.where.rpartition(":")[2] or node.lineno)
            yield syntax.Refused(line, tuple(_binds(node)), what, why, error.fix)

    def body(self, nodes: Sequence[ast.stmt]) -> tuple[syntax.Statement, ...]:
        read = (self.statements(node) if isinstance(node, ast.FunctionDef) else self.statement(node) for node in nodes)
        return tuple(itertools.chain.from_iterable(read))

    def statement(self, node: ast.stmt) -> Iterator[syntax.Statement]:
        line = node.lineno
        match node:
            case ast.FunctionDef():
                yield self.function(node)
            case ast.Assign(targets=targets, value=value):
                yield syntax.Assign(line, tuple(map(self.target, targets)), self.expression(value))
            case ast.AnnAssign(target=target, value=value):
                if value is not None:
                    yield syntax.Assign(line, (self.target(target),), self.expression(value))
            case ast.AugAssign(target=target, op=operator, value=value):
                changed = self.target(target)
                if type(operator) not in _ARITHMETIC or not isinstance(changed, syntax.Name | syntax.Element):
                    self.not_listed(node)
                yield syntax.Change(line, changed, _ARITHMETIC[type(operator)], self.expression(value))
            case ast.If(test=test, body=body, orelse=otherwise):
                yield syntax.If(line, self.expression(test), self.body(body), self.body(otherwise))
            case ast.For(target=target, iter=values, body=body, orelse=otherwise):
                yield syntax.For(line, self.target(target), self.expression(values), self.body(body), self.body(otherwise))
            case ast.While(test=test, body=body, orelse=[]):
                yield syntax.While(line, self.expression(test), self.body(body))
            case ast.Return(value=value):
                yield syntax.Return(line, None if value is None else self.expression(value))
            case ast.Expr(value=ast.Yield(value=value)) if value is not None:
                yield syntax.Yield(line, self.expression(value))
            case ast.Expr(value=ast.Constant(value=str())):
                return  # a docstring
            case ast.Expr(value=value):
                yield syntax.Evaluate(line, self.expression(value))
            case ast.Assert(test=test, msg=message):
                yield syntax.Assert(line, self.expression(test), None if message is None else self.expression(message))
            case ast.Break() | ast.Continue() | ast.Pass():
                how = {ast.Break: "break", ast.Continue: "continue", ast.Pass: "pass"}[type(node)]
                yield syntax.Leave(line, how)  # type: ignore[arg-type]  # one of the three
            case ast.Import(names=names):
                for alias in names:
                    if "." in alias.name and alias.asname is None:
                        why, fix = "its parts would be reached by their names", f"from {alias.name} import ..."
                        self.refuse(node, f"import {alias.name}", why, fix)
                    yield syntax.Import(line, alias.name, None, alias.asname or alias.name)
            case ast.ImportFrom(module=module, names=names, level=level):
                if level or not module or any(alias.name == "*" for alias in names):
                    self.refuse(node, "an import without names", "what it gives cannot be told", "import names: from module import name")
                for alias in names:
                    yield syntax.Import(line, module, alias.name, alias.asname or alias.name)
            case _:
                self.not_listed(node)

    def target(self, node: ast.expr) -> syntax.Target:
        match node:
            case ast.Name(id=name):
                return syntax.Name(node.lineno, name)
            case ast.Subscript(value=value, slice=position) if not isinstance(position, ast.Slice):
                return syntax.Element(node.lineno, self.expression(value), self.expression(position))
            case ast.Attribute(value=value, attr=name) if name in NAMES_OF_FUNCTIONS:
                return syntax.Field(node.lineno, self.expression(value), name)
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                spread = [position for position, each in enumerate(elements) if isinstance(each, ast.Starred)]
                plain = [each.value if isinstance(each, ast.Starred) else each for each in elements]
                return syntax.Targets(tuple(map(self.target, plain)), spread[0] if spread else None)
        return self.refuse(node, f"a change of {ast.unparse(node)}", STATE, "make a new value in each call and return it")

    def function(self, node: ast.FunctionDef | ast.Lambda) -> syntax.Function:
        parameters = self.parameters(node.args)
        if isinstance(node, ast.Lambda):
            return syntax.Function(node.lineno, "<lambda>", parameters, (syntax.Return(node.lineno, self.expression(node.body)),))
        makers = tuple(map(self.expression, node.decorator_list))
        return syntax.Function(node.lineno, node.name, parameters, self.body(node.body), ast.get_docstring(node) or "", makers)

    def parameters(self, node: ast.arguments) -> tuple[syntax.Parameter, ...]:
        plain = [*node.posonlyargs, *node.args]
        defaults: list[ast.expr | None] = [*[None] * (len(plain) - len(node.defaults)), *node.defaults]
        parameters = [self.parameter(each, default) for each, default in zip(plain, defaults, strict=True)]
        if node.vararg:
            parameters.append(syntax.Parameter(node.vararg.arg, _annotation(node.vararg), None, "*"))
        for each, default in zip(node.kwonlyargs, node.kw_defaults, strict=True):
            made = self.parameter(each, default)
            parameters.append(syntax.Parameter(made.name, made.annotation, made.default, "", True))
        if node.kwarg:
            parameters.append(syntax.Parameter(node.kwarg.arg, _annotation(node.kwarg), None, "**"))
        return tuple(parameters)

    def parameter(self, node: ast.arg, default: ast.expr | None) -> syntax.Parameter:
        return syntax.Parameter(node.arg, _annotation(node), None if default is None else self.expression(default))

    # Expressions

    def expression(self, node: ast.expr) -> syntax.Expression:
        line = node.lineno
        match node:
            case ast.Constant(value=None | bool() | int() | float() | str() as value):
                return syntax.Literal(line, value)
            case ast.Name(id=name):
                if name in NOT_LISTED_BUILTINS and name not in _bound_in(self.tree):
                    self.refuse(node, name, *_BY_NAME.get(name, (_WORLD, "say what you need in require(...)")))
                return syntax.Name(line, name)
            case ast.Attribute(value=value, attr=name):
                of_module = isinstance(value, ast.Name) and value.id in self.modules and not name.startswith("__")
                if name not in ALLOWED_FIELDS and not of_module:
                    self.refuse(node, f".{name}", "what lies inside an object is another thing in a proof", BY_VALUE)
                return syntax.Field(line, self.expression(value), name)
            case ast.Subscript(value=value, slice=ast.Slice(lower=first, upper=last, step=step)):
                ends = (None if each is None else self.expression(each) for each in (first, last, step))
                return syntax.Part(line, self.expression(value), *ends)
            case ast.Subscript(value=value, slice=position):
                return syntax.Element(line, self.expression(value), self.expression(position))
            case ast.Call(func=function, args=arguments, keywords=named):
                return syntax.Call(
                    line, self.expression(function), tuple(map(self.spread, arguments)),
                    tuple((each.arg, self.expression(each.value)) for each in named if each.arg is not None),
                    tuple(self.expression(each.value) for each in named if each.arg is None),
                )  # fmt: skip
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)) if not isinstance(value, bool):
                return syntax.Literal(line, -value)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return syntax.Negative(line, self.expression(operand))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return syntax.Not(line, self.expression(operand))
            case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _ARITHMETIC:
                return syntax.Arithmetic(line, _ARITHMETIC[type(operator)], self.expression(left), self.expression(right))
            case ast.Compare(left=left, ops=operators, comparators=comparators):
                sides = [left, *comparators]
                for at, comparison in enumerate(operators):
                    none = any(isinstance(each, ast.Constant) and each.value is None for each in sides[at : at + 2])
                    if isinstance(comparison, ast.Is | ast.IsNot) and not none:
                        why = "equal sizes may be one object or two, in a proof and at a match"
                        self.refuse(node, "`is`", why, "compare with ==; only None is asked with `is`")
                compared = zip(operators, comparators, strict=True)
                comparisons = ((_COMPARISONS[type(comparison)], self.expression(each)) for comparison, each in compared)
                return syntax.Compared(line, self.expression(left), tuple(comparisons))
            case ast.BoolOp(op=operator, values=values):
                return syntax.Every(line, isinstance(operator, ast.Or), tuple(map(self.expression, values)))
            case ast.IfExp(test=test, body=then, orelse=otherwise):
                return syntax.Choice(line, self.expression(test), self.expression(then), self.expression(otherwise))
            case ast.Tuple(elts=elements):
                return syntax.Display(line, "tuple", tuple(map(self.spread, elements)))
            case ast.List(elts=elements):
                return syntax.Display(line, "list", tuple(map(self.spread, elements)))
            case ast.Set(elts=elements):
                return syntax.Display(line, "set", tuple(map(self.spread, elements)))
            case ast.Dict(keys=keys, values=values) if all(key is not None for key in keys):
                pairs_ = ((key, value) for key, value in zip(keys, values, strict=True) if key is not None)
                return syntax.Table(line, tuple((self.expression(key), self.expression(value)) for key, value in pairs_))
            case ast.ListComp(elt=element, generators=clauses):
                return syntax.Comprehension(line, "list", None, self.expression(element), tuple(map(self.clause, clauses)))
            case ast.SetComp(elt=element, generators=clauses):
                return syntax.Comprehension(line, "set", None, self.expression(element), tuple(map(self.clause, clauses)))
            case ast.GeneratorExp(elt=element, generators=clauses):
                return syntax.Comprehension(line, "one by one", None, self.expression(element), tuple(map(self.clause, clauses)))
            case ast.DictComp(key=key, value=element, generators=clauses):
                return syntax.Comprehension(line, "table", self.expression(key), self.expression(element), tuple(map(self.clause, clauses)))
            case ast.JoinedStr(values=parts):
                return syntax.Text(line, tuple(map(self.part, parts)))
            case ast.Lambda():
                return self.function(node)
        return self.not_listed(node)

    def spread(self, node: ast.expr) -> syntax.Expression | syntax.Spread:
        return syntax.Spread(node.lineno, self.expression(node.value)) if isinstance(node, ast.Starred) else self.expression(node)

    def clause(self, node: ast.comprehension) -> syntax.Clause:
        if node.is_async:
            self.not_listed(node)
        return syntax.Clause(self.target(node.target), self.expression(node.iter), tuple(map(self.expression, node.ifs)))

    def part(self, node: ast.expr) -> str | tuple[syntax.Expression, str]:
        match node:
            case ast.Constant(value=str() as text):
                return text
            case ast.FormattedValue(value=value, format_spec=None):
                return self.expression(value), ""
            case ast.FormattedValue(value=value, format_spec=ast.JoinedStr(values=[ast.Constant(value=str() as form)])):
                return self.expression(value), form
        return self.not_listed(node)


NOT_LISTED_BUILTINS = frozenset(vars(builtins)) - frozenset(BUILTINS)
ALLOWED_FIELDS = FIELDS.union(*(spec.attributes for spec in OPS.values()), *(module for module in MODULES.values()))


def _annotation(node: ast.arg) -> str:
    if isinstance(node.annotation, ast.Constant) and isinstance(node.annotation.value, str):
        return node.annotation.value
    return "" if node.annotation is None else ast.unparse(node.annotation)


def _named(node: ast.AST) -> str:
    try:
        text = ast.unparse(node).splitlines()[0]
    except (AttributeError, IndexError):
        text = type(node).__name__
    return f"`{text}`"


def _bound_in(tree: ast.AST) -> frozenset[str]:
    """Return every name that a text binds; such a name is not a builtin."""
    bound: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.arg(arg=name):
                bound.add(name)
            case ast.stmt():
                bound.update(_binds(node))
            case ast.comprehension(target=target):
                bound.update(each.id for each in ast.walk(target) if isinstance(each, ast.Name))
    return frozenset(bound)


def _binds(node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.FunctionDef() | ast.ClassDef() | ast.AsyncFunctionDef():
            yield node.name
        case ast.Import() | ast.ImportFrom():
            yield from (alias.asname or alias.name.split(".")[0] for alias in node.names)
        case _:
            for each in ast.walk(node):
                if isinstance(each, ast.Name) and not isinstance(each.ctx, ast.Load):
                    yield each.id
