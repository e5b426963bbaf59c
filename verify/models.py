"""Find small concrete values that satisfy conditions: Z3 proposes, plain arithmetic checks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from egraph.tensor.expr.index import Index, Iterator, RealSymbol, Symbol, atoms, index, substitute
from egraph.tensor.expr.scope import Compare
from verify.facts import Facts
from verify.literals import Literal0, literal
from verify.polynomials import FloorAtom, entry
from verify.solver import SMT, definition

_LIMIT = 2_000_000  # resource units of Z3 per bound
_LONGEST = 1000
"""Most digits of a number from Z3. Python reads at most 4,300 digits as an integer, and no double needs more."""
_BOUNDS = (2, 3, 4, 6, 9, 16, 40, 200)


def small_model(conditions: Sequence[Compare], symbols: Sequence[Symbol]) -> dict[Symbol, int] | None:
    """Return checked values of the symbols (and no others) under the smallest bound for which Z3 finds some."""
    values = small_values(conditions, symbols)
    return None if values is None else {symbol: int(values[symbol]) for symbol in symbols}


def small_values(conditions: Sequence[Compare], symbols: Sequence[Symbol]) -> dict[Symbol | RealSymbol, int | Fraction] | None:
    """Return small values of all symbols, and values of named numbers; the latter are not checked."""
    import z3

    names: dict[int, str] = {}
    nothing = Facts()
    literals = [literal(condition) for condition in conditions]
    pending = [a for constraint in literals for a in constraint.value.atoms()]
    pending += [a for symbol in symbols for a in literal(Compare(index(symbol), "==", index(0))).value.atoms()]
    while pending:
        atom = pending.pop()
        if atom in names:
            continue
        kind = entry(atom).kind
        names[atom] = f"{'r' if isinstance(kind, RealSymbol) else 'v'}{len(names)}"
        described = definition(nothing, atom)
        if isinstance(kind, FloorAtom):
            pending += [*kind.numerator.atoms(), *kind.divisor.atoms()]
        literals += [Literal0(value, ">=") for value in described]
        pending += [a for value in described for a in value.atoms()]
    variables: dict[int, Any] = {
        atom: z3.Real(name) if isinstance(entry(atom).kind, RealSymbol) else z3.Int(name) for atom, name in names.items()
    }
    declared = "".join(f"(declare-const {name} {'Real' if name.startswith('r') else 'Int'})" for name in names.values())
    limited = [name for atom, name in names.items() if isinstance(entry(atom).kind, Symbol)]

    solver = z3.Solver()
    solver.set("rlimit", _LIMIT)
    solver.from_string(declared + "".join(_asserted(constraint, names) for constraint in literals))
    for bound in _BOUNDS:
        solver.push()
        solver.from_string("".join(f"(assert (<= {name} {bound}))(assert (>= {name} (- {bound})))" for name in limited))
        if solver.check() == z3.sat:
            model = solver.model()
            integers: dict[Iterator | Symbol, int] = {}
            for atom, name in variables.items():
                kind = entry(atom).kind
                if isinstance(kind, Iterator | Symbol):
                    integers[kind] = model.eval(name, model_completion=True).as_long()
            if satisfied(conditions, integers):
                values: dict[Symbol | RealSymbol, int | Fraction] = {s: n for s, n in integers.items() if isinstance(s, Symbol)}
                for atom, name in variables.items():
                    kind = entry(atom).kind
                    number = model.eval(name, model_completion=True)
                    if isinstance(kind, RealSymbol) and z3.is_rational_value(number) and len(number.as_string()) <= _LONGEST:
                        values[kind] = number.as_fraction()
                return values
        solver.pop()
    return None


def _asserted(constraint: Literal0, names: Mapping[int, str]) -> str:
    """Return a literal in Z3's input language."""
    terms = []
    for monomial, coefficient in constraint.value.terms.items():
        number = str(coefficient) if coefficient >= 0 else f"(- {-coefficient})"
        terms.append(f"(* {number} {' '.join(names[atom] for atom in monomial)})" if monomial else number)
    total = f"(+ {' '.join(terms)})" if len(terms) > 1 else (terms or ["0"])[0]
    return f"(assert (not (= {total} 0)))" if constraint.relation == "!=" else f"(assert ({SMT[constraint.relation]} {total} 0))"


def satisfied(conditions: Iterable[Compare], values: Mapping[Symbol, int] | Mapping[Iterator | Symbol, int]) -> bool:
    """Return whether every condition that contains no other symbols than those of the values holds."""
    return all(_holds(condition, values) is not False for condition in conditions)


def _holds(condition: Compare, values: Mapping[Symbol, int] | Mapping[Iterator | Symbol, int]) -> bool | None:
    """Return whether a condition holds for the values; None if it contains other symbols."""
    difference = substitute(condition.right - condition.left, values)
    if atoms(difference):
        return None
    number = _number(difference)
    return {"<": number > 0, "<=": number >= 0, "==": number == 0, "!=": number != 0}[condition.operator]


def _number(value: Index) -> int:
    constant = value.constant
    assert constant is not None, "no atom is left"
    return constant
