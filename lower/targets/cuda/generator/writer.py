"""Write terms as CUDA C for one thread: each value once, in the outermost block where it does not vary."""

from __future__ import annotations

from collections.abc import Iterator as Iterable
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from egraph.tensor.expr.functions import CONVERSIONS
from egraph.tensor.expr.index import DataIndex, Floor, Index, Iterator, Modulo, bounds, known, length
from egraph.tensor.expr.scope import Compare, Read, Reduction, Tensor
from lower.eoperator.terms import Term
from lower.targets.cuda.generator.functions import COMPARISONS, LOGICAL, TYPES, call, literal, power

STRETCH = 128
"""Terms that a long sum adds up before they are added to the total: rounding grows with their number and that of the blocks."""


@dataclass(frozen=True)
class Value:
    """An expression and its C type; bool values are 'bool', however they lie in memory."""

    text: str
    kind: str


@dataclass
class Block:
    """Statements that will stand in braces. ``barrier``: what is computed inside must stay inside, since a test protects it."""

    barrier: bool = False
    lines: list[str] = field(default_factory=list)
    bound: dict[Iterator, str] = field(default_factory=dict)
    values: dict[Term, Value] = field(default_factory=dict)


class Writer:
    """Writes one kernel's body; ``parameters`` are the names of its operands, by tensor name."""

    def __init__(self, parameters: Mapping[str, str], dtypes: Mapping[str, str]) -> None:
        self.parameters, self.dtypes = dict(parameters), dict(dtypes)
        self.blocks = [Block(barrier=True)]
        self._at = 0
        self._names = 0

    # Statements

    def line(self, text: str) -> None:
        self.blocks[self._at].lines.append(text)

    def name(self, prefix: str = "v") -> str:
        self._names += 1
        return f"{prefix}_{self._names}"  # iterators have no such names

    @contextmanager
    def inside(self, block: Block) -> Iterable[Block]:
        """Write into a new innermost block, which is not part of the kernel yet."""
        kept, at = self.blocks, self._at
        self.blocks, self._at = [*self.blocks[: at + 1], block], at + 1
        yield block
        self.blocks, self._at = kept, at

    @contextmanager
    def braces(self, head: str, *, barrier: bool = False, pragma: str = "") -> Iterable[Block]:
        """Write ``head { ... }``, below a pragma if one is given."""
        with self.inside(Block(barrier)) as block:
            yield block
        if pragma:
            self.line(f"#pragma {pragma}")
        self.line(f"{head} {{".lstrip())
        self.blocks[self._at].lines += [f"  {line}" for line in block.lines]
        self.line("}")

    def bind(self, iterator: Iterator, text: str) -> None:
        """Bind an iterator to a variable of its name."""
        self.line(f"const int {iterator.name} = {text};")
        self.blocks[self._at].bound[iterator] = iterator.name

    def bind_digits(self, iterators: Sequence[Iterator], flat: str) -> None:
        """Bind iterators to the digits of a number that is not negative, the last one's lowest."""
        step = 1
        for iterator in reversed(iterators):
            quotient = flat if step == 1 else f"{flat} / {step}u"
            digit = quotient if iterator is iterators[0] else f"{quotient} % {length(iterator)}u"
            self.bind(iterator, plus(f"(int)({digit})" if digit != flat else flat, known(iterator.low)))
            step *= length(iterator)

    def give(self, term: Term, value: Value) -> None:
        """State a term's value, computed elsewhere."""
        self.blocks[self._at].values[term] = value

    # Indices

    def index(self, value: Index) -> str:
        """Return an index as an integer expression."""
        parts: list[str] = []
        for monomial, c in value.terms:
            factors = [self._atom(atom) for atom in monomial]
            size = abs(c)
            text = " * ".join([*factors, str(size)] if size != 1 or not factors else factors)
            parts.append((" - " if c < 0 else " + ") + text)
        if not parts:
            return "0"
        joined = "".join(parts)
        return joined[3:] if joined.startswith(" + ") else "-" + joined[3:]

    def _atom(self, atom: object) -> str:
        match atom:
            case Iterator():
                return self._iterator(atom)
            case Floor(numerator, divisor) | Modulo(numerator, divisor):
                limits = bounds(numerator)
                top, by = self.index(numerator), self.index(divisor)
                if limits is not None and limits[0] >= 0:
                    return f"(({top}) {'%' if isinstance(atom, Modulo) else '/'} ({by}))"
                return f"einsat_{'remainder' if isinstance(atom, Modulo) else 'quotient'}({top}, {by})"
            case DataIndex(read):
                return f"(int){self._element(read)}"
        raise AssertionError(f"{atom} in an index")

    def _iterator(self, iterator: Iterator) -> str:
        for block in reversed(self.blocks[: self._at + 1]):
            if iterator in block.bound:
                return block.bound[iterator]
        raise AssertionError(f"{iterator} is not bound")

    def _element(self, read: Read) -> str:
        assert isinstance(read.source, Tensor)
        return self.load(read.source.name.removeprefix("flat "), read.indices[0])

    def load(self, name: str, offset: Index) -> str:
        return f"{self.parameters[name]}[{self.index(offset)}]"

    def condition(self, conditions: Sequence[Compare]) -> str:
        """Return whether all conditions hold."""
        return " && ".join(f"{self.index(c.left)} {c.operator} {self.index(c.right)}" for c in conditions)

    # Values

    def value(self, term: Term, kind: str = "float") -> Value:
        """Return a term's value, computed in the outermost block possible; ``kind``: the type of a number."""
        if term.kind == "number":
            return Value(literal(term.data, kind), kind)
        for block in reversed(self.blocks[: self._at + 1]):
            if term in block.values:
                return block.values[term]
        level = self._level(term.free)
        at, self._at = self._at, level
        value = self._reduce(term) if term.kind == "reduce" else self._named(self._compute(term))
        self.blocks[level].values[term] = value
        self._at = at
        return value

    def _level(self, free: frozenset[Iterator]) -> int:
        """Return the outermost block where a value over these iterators can stand."""
        lowest = max(k for k in range(self._at + 1) if self.blocks[k].barrier)
        for k in range(self._at, lowest, -1):
            if any(iterator in self.blocks[k].bound for iterator in free):
                return k
        return lowest

    def _named(self, value: Value) -> Value:
        name = self.name()
        self.line(f"const {value.kind} {name} = {value.text};")
        return Value(name, value.kind)

    def _compute(self, term: Term) -> Value:
        match term.kind:
            case "index":
                alone = term.data.atom
                text = self._element(alone.read) if isinstance(alone, DataIndex) else f"({self.index(term.data)})"
                return Value(f"(float){text}", "float")
            case "read":
                name, offset = term.data
                text = self.load(name, offset)
                if self.dtypes[name] == "bool":
                    return Value(f"{text} != 0", "bool")
                return Value(text, TYPES[self.dtypes[name]])
            case "apply":
                return self._apply(term)
            case "guard":
                return self._guard(term)
        raise AssertionError(f"a {term.kind} has no text")

    def _apply(self, term: Term) -> Value:
        function, children = term.data, term.children
        if function == "pow" and children[1].kind == "number" and children[0].kind != "number":
            product = power(self.value(children[0]).text, children[1].data)
            if product is not None:
                return Value(product, "float")
        if function in CONVERSIONS:
            converted = TYPES[CONVERSIONS[function]]
            return Value(f"(({converted}){self.value(children[0]).text})", converted)
        if function in LOGICAL:
            values = [self.value(child, "bool") for child in children]
            return Value(call(function, [v.text if v.kind == "bool" else f"({v.text} != 0)" for v in values]), "bool")
        tests = 1 if function == "where" else 0
        conditions = [self.value(child, "bool") for child in children[:tests]]
        kinds = [self.value(child).kind for child in children[tests:] if child.kind != "number"]
        common = next((kind for kind in kinds if kind != "bool"), "float")
        if function == "where" and kinds and not set(kinds) - {"bool"} and len(kinds) == len(children) - tests:
            common = "bool"
        operands = [_as(self.value(child, common), common) for child in children[tests:]]
        text = call(function, [*(_as(condition, "bool") for condition in conditions), *operands])
        return Value(text, "bool" if function in COMPARISONS else common)

    def _guard(self, term: Term) -> Value:
        """Choose by a branch, so that nothing is read where the guard fails."""
        kinds: list[str] = []
        branches = []
        for child in sorted(term.children, key=lambda child: child.kind == "number"):
            with self.inside(Block(barrier=True)) as block:
                value = self.value(child, kinds[0] if kinds else "float")
                if child.kind == "read" and len(block.lines) == 1:  # one load needs no name
                    value = self._compute(child)
                    block.lines.clear()
            kinds.append(value.kind)
            branches.append((child, block.lines, value))
        branches.sort(key=lambda branch: branch[0] is not term.children[0])
        (_, then_lines, then), (_, else_lines, otherwise) = branches
        kind = next((k for k in kinds if k != "bool"), kinds[0])
        test = self.condition(term.data)
        if not then_lines and not else_lines:
            return Value(f"{test} ? {then.text} : {otherwise.text}", kind)
        result = self.name()
        self.line(f"{kind} {result};")
        self.line(f"if ({test}) {{")
        self.blocks[self._at].lines += [*(f"  {line}" for line in then_lines), f"  {result} = {then.text};", "} else {"]
        self.blocks[self._at].lines += [*(f"  {line}" for line in else_lines), f"  {result} = {otherwise.text};", "}"]
        return Value(result, kind)

    # Reductions within a thread

    def _reduce(self, term: Term) -> Value:
        reduction, iterators = term.data
        total = self.accumulator(reduction)
        self._loops(reduction, iterators, term.children[0], total)
        return Value(total, "float")

    def accumulator(self, reduction: Reduction) -> str:
        name = self.name("sum" if reduction == Reduction.SUM else "total")
        self.line(f"float {name} = {literal(reduction.identity.value, 'float')};")
        return name

    def accumulate(self, reduction: Reduction, total: str, value: str) -> None:
        self.line(f"{total} = {call(reduction.combine, [total, value])};")

    def _loops(self, reduction: Reduction, iterators: Sequence[Iterator], body: Term, total: str) -> None:
        iterator, *inner = iterators
        low, high = known(iterator.low), known(iterator.low) + length(iterator)
        name = iterator.name
        if not inner and reduction == Reduction.SUM and length(iterator) >= 2 * STRETCH:
            first = self.name("first")
            with self.braces(f"for (int {first} = {low}; {first} < {high}; {first} += {STRETCH})"):
                near = self.accumulator(reduction)
                last = f"min({first} + {STRETCH}, {high})" if length(iterator) % STRETCH else f"{first} + {STRETCH}"
                with self.braces(f"for (int {name} = {first}; {name} < {last}; ++{name})") as block:
                    block.bound[iterator] = name
                    self.accumulate(reduction, near, self.value(body).text)
                self.accumulate(reduction, total, near)
            return
        with self.braces(f"for (int {name} = {low}; {name} < {high}; ++{name})") as block:
            block.bound[iterator] = name
            if inner:
                self._loops(reduction, inner, body, total)
            else:
                self.accumulate(reduction, total, self.value(body).text)


def plus(text: str, constant: int) -> str:
    """Return text + constant."""
    return f"{text} + {constant}" if constant else text


def _as(value: Value, kind: str) -> str:
    """Return a value as one of another type."""
    if value.kind == kind:
        return value.text
    if kind == "bool":
        return f"({value.text} != 0)"
    return f"({kind}){value.text}"
