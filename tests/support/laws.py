"""The laws by which normal forms are rewritten, in one table; a test proves every row or checks it exhaustively.

Functions that only take values apart, name them or pass them on are listed in ``PASSING``. Tests compare these with the meanings of the
operators. Laws of quotients, remainders and conditions over indices are in ``egraph.tensor.expr.laws``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Way: TypeAlias = Literal["reals", "integers", "exponents", "series", "order", "finite"]
HOW: dict[Way, str] = {
    "reals": "Z3, for all real numbers",
    "integers": "Z3, for all integers",
    "exponents": "exhaustively in the squares of F_23 and F_47, which have all roots, and the exponents of a generator",
    "series": "exactly, by the first 40 coefficients of the power series",
    "order": "exhaustively on all numbers of float16",
    "finite": "exhaustively on small numbers, tables and ranges, by Python's exact arithmetic",
}


@dataclass(frozen=True, slots=True)
class Law:
    """``left == right`` if all of ``given`` hold and both sides are defined, in Python's notation.

    ``positive(x)`` and ``zero(x)`` are 1 where x > 0, x == 0, else 0. ``used``: the functions of ``verify.normal`` that apply it; ``asks``:
    the fact that they record with it if it holds only for some operands.
    """

    name: str
    way: Way
    left: str
    right: str
    used: tuple[str, ...]
    given: tuple[str, ...] = ()
    asks: str = ""


_NOT_ZERO, _NOT_NEGATIVE, _POSITIVE = "nonzero divisor", "argument of a root not negative", "positive argument of a logarithm"
_MEETING = ("products._conditions_on_data", "products._meeting", "choices.settled", "choices._implied")
_JOINING = ("joining.joined", "joining._joined", "joining._joined_as_they_stand", "joining._partner")
_CORNER = "a * {0} + positive({0} + c) * (s + b * {0})"
_ODD = ("functions.law",)
LAWS = (
    # Sums and products
    Law("like terms", "reals", "a * x + b * x", "(a + b) * x", ("algebra.add", "algebra.collect", "algebra._merged")),
    Law("a condition and its negation", "reals", "positive(y) * x + (1 - positive(y)) * x", "x",
        ("algebra._without_complements", "algebra._complement")),
    Law("products distribute", "reals", "(x + y) * z", "x * z + y * z", ("products.multiply", "products._times", "products.product_of")),
    Law("common factors", "reals", "x * y + x * z", "x * (y + z)",
        ("products.content", "products.common_factors", "products.shared_factors", "products.without", "products.independent")),
    Law("negation", "reals", "-x", "(-1) * x", ("context.negated", "context.scaled", "context.number", "algebra.with_factors")),
    Law("small powers", "reals", "pow(x, 3)", "x * x * x", ("products.power", "functions._power")),
    Law("half powers", "reals", "pow(x, 1.5)", "x * sqrt(x)", ("functions._power",), ("x >= 0",)),
    Law("negative powers", "reals", "pow(x, -2)", "1 / (x * x)", ("functions._power",), ("x != 0",)),
    Law("powers of one", "finite", "1 ** x", "1", ("functions._power",)),
    # Quotients
    Law("quotient", "reals", "x / y", "x * (1 / y)", ("functions._divide", "functions._reciprocal", "functions.divided"), ("y != 0",)),
    Law("divisor cancelled", "reals", "x * y / x", "y", ("products._without_exponents", "products._without"), ("x != 0",), _NOT_ZERO),
    Law("reciprocal of a product", "reals", "1 / (2 * x * y)", "0.5 * (1 / x) * (1 / y)", ("products.reciprocal",), ("x != 0", "y != 0")),
    Law("reciprocal twice", "reals", "1 / (1 / x)", "x", ("products._inverse",), ("x != 0",), _NOT_ZERO),
    Law("product reduced by a sum", "reals", "x * (1 / (x + y))", "1 - y * (1 / (x + y))",
        ("products._reduced",), ("x + y != 0",), _NOT_ZERO),
    Law("where a sum vanishes", "reals", "x * zero(x + y)", "-y * zero(x + y)", ("products._reduced",)),
    # Roots
    Law("root squared", "reals", "sqrt(x) * sqrt(x)", "x", ("products._without_exponents",), ("x >= 0",), _NOT_NEGATIVE),
    Law("root of a square", "reals", "sqrt(x * x * y)", "abs(x) * sqrt(y)", ("functions.root",), ("y > 0",)),
    Law("root of a positive factor", "reals", "sqrt(x * y)", "sqrt(x) * sqrt(y)", ("functions.root", "functions._root_of_positive"),
        ("x > 0", "y >= 0")),
    Law("root of a number", "reals", "sqrt(12 * x)", "2 * sqrt(3 * x)", ("functions.root",), ("x >= 0",)),
    Law("reciprocal of a root of a number", "reals", "1 / sqrt(2)", "sqrt(2) / 2", ("products._inverse",)),
    Law("reciprocal of a root squared", "reals", "(1 / sqrt(x)) * (1 / sqrt(x))", "1 / x", ("products._without_exponents",), ("x > 0",)),
    # Conditions on data
    Law("condition twice", "reals", "positive(x) * positive(x)", "positive(x)", _MEETING),
    Law("weaker condition", "reals", "positive(v + c) * positive(v + d)", "positive(v + d)", _MEETING, ("c >= d",)),
    Law("condition that follows", "reals", "zero(v + c) * positive(v + d)", "zero(v + c)", _MEETING, ("d > c",)),
    Law("condition that is excluded", "reals", "zero(v + c) * positive(v + d)", "0", _MEETING, ("d <= c",)),
    Law("equations that exclude each other", "reals", "zero(v + c) * zero(v + d)", "0", _MEETING, ("c < d",)),
    Law("condition under a negation", "reals", "(1 - positive(v + c)) * positive(v + d)", "0", _MEETING, ("d <= c",)),
    Law("equation under a negation", "reals", "(1 - positive(v + c)) * zero(v + d)", "0", _MEETING, ("d < c",)),
    Law("condition of another sign", "reals", "positive(-x)", "1 - positive(x) - zero(x)", ("choices._positive",)),
    Law("condition scaled", "reals", "positive(a * x)", "positive(x)", ("choices._oriented",), ("a > 0",)),
    Law("equation scaled", "reals", "zero(2 * x)", "zero(-x)", ("choices._oriented", "choices._zero", "choices.zero")),
    Law("condition on a quotient", "reals", "positive(x / a + z)", "positive(x + z * a)",
        ("choices._oriented", "choices._positive_divisor"), ("a > 0",)),
    Law("condition of known sign", "reals", "positive(x)", "1", ("choices._positive", "choices.positive"), ("x > 0",)),
    Law("equation of known sign", "reals", "zero(x)", "0", ("choices._zero",), ("x > 0",)),
    Law("sign of a quotient", "reals", "positive(x / y)", "positive(x * y)", ("choices._of_same_sign",), ("y != 0",), _NOT_ZERO),
    Law("sign of a hyperbolic tangent", "reals", "positive(x * tanh(y))", "positive(x * y)", ("choices._of_same_sign",)),
    Law("condition on a floor", "reals", "positive(2 - floor(x))", "positive(2 - x)", ("choices._without_floor",)),
    Law("condition on a rounding", "reals", "positive(round(x) - 2)", "positive(x - 2.5)", ("choices._without_round",)),
    Law("condition on a rounding that a tie meets", "reals", "positive(4 - round(x))", "positive(3.5 - x)", ("choices._without_round",)),
    Law("condition on a rounding with its tie", "reals", "positive(round(x) - 3)", "positive(x - 3.5) + zero(x - 3.5)",
        ("choices._without_round",)),
    Law("squares in a condition", "reals", "x * positive(x * x * y)", "x * positive(y)", ("products._without_squares",)),
    Law("truth of a condition", "reals", "1 - zero(positive(x))", "positive(x)", ("choices.truth",)),
    Law("choice", "reals", "where(z, x, y)", "y + (1 - zero(z)) * (x - y)", ("choices.choose",)),
    Law("function of a choice", "reals", "max(where(positive(z), x, y), w)", "where(positive(z), max(x, w), max(y, w))",
        ("choices.split", "choices.index_condition", "choices.data_condition", "choices.under")),
    Law("below", "reals", "less(x, y)", "positive(y - x)", ("functions._less",)),
    Law("not above", "reals", "less_equal(x, y)", "1 - positive(x - y)", ("functions._less_equal",), (), "comparison of numbers"),
    Law("equal", "reals", "equal(x, y)", "zero(x - y)", ("functions._equal",)),
    Law("both", "reals", "and_(x, y)", "(1 - zero(x)) * (1 - zero(y))", ("functions._and",)),
    Law("none", "reals", "not_(x)", "zero(x)", ("functions._not",)),
    Law("either", "reals", "or_(x, y)", "1 - zero(x) * zero(y)", ("functions._or",)),
    Law("magnitude of a product", "reals", "abs(-2 * x * y)", "2 * abs(x) * abs(y)", ("functions._absolute",)),
    Law("magnitude", "reals", "abs(x)", "max(x, -x)", ("functions._absolute",)),
    Law("sign of a product", "reals", "sign(-x * y)", "-sign(x) * sign(y)", ("functions._sign",)),
    Law("sign", "reals", "sign(x)", "positive(x) - positive(-x)", ("functions._sign",)),
    # Known signs
    Law("square", "reals", "x * x >= 0", "True", ("signs._sign_of_term",)),
    Law("sum of signs", "reals", "x + y > 0", "True", ("signs.sign", "signs.above"), ("x > 0", "y >= 0")),
    Law("factors of known sign", "reals", "exp(x) > 0 and sqrt(abs(x)) >= 0 and positive(x) >= 0 and zero(x) >= 0", "True",
        ("signs.sign_of_factor",)),
    Law("reciprocal of known sign", "reals", "1 / x > 0", "True", ("signs.sign_of_factor",), ("x > 0",)),
    Law("maximum of known sign", "reals", "max(x, y) >= x and max(x, -x) >= 0", "True", ("signs.sign_of_factor",)),
    # Maxima
    Law("minimum", "reals", "min(x, y)", "-max(-x, -y)", ("extrema.minimum",)),
    Law("maxima inside", "reals", "max(2 * max(x, y) + z, w)", "max(2 * x + z, max(2 * y + z, w))",
        ("extrema.candidates", "extrema._opened", "extrema.flattened", "extrema.maximum")),
    Law("smaller alternative", "reals", "max(x, x + abs(y))", "x + abs(y)", ("extrema._without_absorbed",)),
    Law("minimum of an alternative", "reals", "max(x, min(x, y))", "x", ("extrema._without_absorbed",)),
    Law("common summand", "reals", "max(x + z, y + z)", "max(x, y) + z", ("extrema._translated", "extrema._base")),
    Law("common positive factor", "reals", "max(a * x, a * y)", "a * max(x, y)",
        ("extrema._translated", "extrema._scale", "extrema._divided_by"), ("a > 0",)),
    Law("maximum as a condition", "reals", "max(x, y)", "y + (x - y) * positive(x - y)", ("extrema._translated",)),
    Law("condition by a factor", "reals", "x * a * positive(x * a)", "x * a * positive(x)", ("extrema._direction",), ("a >= 0",)),
    Law("common bound", "reals", "max(min(x, z), min(y, z))", "min(max(x, y), z)", ("extrema._bounded",)),
    Law("function with a corner", "reals", f"max({_CORNER.format('x')}, {_CORNER.format('y')})", _CORNER.format("max(x, y)"),
        ("extrema._cornered", "monotone.corner_of", "monotone._parts", "monotone.at"), ("a >= 0", "a + b >= 0", "s - b * c >= 0")),
    Law("decreasing function", "reals", "max(1 / x, 1 / y)", "1 / min(x, y)", ("extrema._monotone", "extrema.inside"), ("x > 0", "y > 0")),
    *(Law(f"{name} rises", "order", f"max({name}(x), {name}(y))", f"{name}(max(x, y))", ("extrema._monotone", "extrema.inside"))
      for name in ("exp", "log", "sqrt", "tanh", "erf", "floor", "round")),
    Law("largest of a range", "finite", "max(f[i] for i in range(k + 1) if f[i] >= x or i == 0)", "max(f[i] for i in range(k + 1))",
        ("extrema._where", "extrema._divided", "extrema.largest"), ("f[0] >= x",)),
    Law("alternative that does not vary", "finite", "max(x for i in range(k + 1))", "x", ("extrema.trimmed",)),
    Law("maximum beside minus infinity", "finite", "max(x, -inf)", "x", ("extrema.candidates",)),
    # Exponentials and logarithms: a and b are exponents, p and q positive
    Law("exponential of a sum", "exponents", "exp(a + b)", "exp(a) * exp(b)", ("products.exponential", "products.product_of")),
    Law("exponential of a logarithm", "exponents", "exp(log(p))", "p", ("products._exponentials",), (), _POSITIVE),
    Law("exponential of logarithms", "exponents", "exp(-2 * log(p))", "1 / (p * p)", ("products._exponentials",), (), _POSITIVE),
    Law("pivot among exponentials", "exponents", "exp(a) + exp(b)", "exp(a) * (exp(b - a) + exp(a - a))", ("products._pivoted",)),
    Law("reciprocal of an exponential", "exponents", "1 / exp(a)", "exp(-a)", ("products._inverse",)),
    Law("root of an exponential", "exponents", "sqrt(exp(a))", "exp(a / 2)", ("functions._root_of_positive",)),
    Law("root of a reciprocal", "exponents", "sqrt(1 / p)", "1 / sqrt(p)", ("functions._root_of_positive",)),
    Law("logarithm of an exponential", "exponents", "log(exp(a))", "a", ("functions._logarithm_of_factor",)),
    Law("logarithm of a product", "exponents", "log(p * q)", "log(p) + log(q)", ("functions.logarithm",), (), _POSITIVE),
    Law("logarithm of a reciprocal", "exponents", "log(1 / p)", "-log(p)", ("functions._logarithm_of_factor",)),
    Law("logarithm of a root", "exponents", "log(sqrt(p))", "log(p) / 2", ("functions._logarithm_of_factor",)),
    Law("product of exponentials", "exponents", "exp(a) * exp(b) * exp(a)", "exp(2 * a + b)", ("scopes._product_over",)),
    Law("exponential of minus infinity", "finite", "math.exp(-inf)", "0", ("products._exponentials",)),
    # Other functions
    Law("odd hyperbolic tangent", "reals", "tanh(-x)", "-tanh(x)", _ODD),
    Law("odd error function", "series", "erf(-x)", "-erf(x)", _ODD),
    Law("odd sine", "series", "sin(-x)", "-sin(x)", _ODD),
    Law("even cosine", "series", "cos(-x)", "cos(x)", ("functions._cosine",)),
    Law("sine and cosine", "series", "cos(x) * cos(x)", "1 - sin(x) * sin(x)", ("products._without_exponents",)),
    Law("floor of a sum", "finite", "floor(x + i)", "floor(x) + i", ("functions._floor",)),
    Law("floor of a floor", "finite", "floor((floor(x) + i) / (k + 1))", "floor((x + i) / (k + 1))", ("functions._floor",)),
    Law("ceiling", "finite", "ceil(x)", "-floor(-x)", ("functions._ceil",)),
    Law("odd rounding", "finite", "round(-x)", "-round(x)", ("functions._round", "functions.law")),
    Law("whole numbers are round", "finite", "round(i) + floor(i)", "2 * i", ("functions._round", "functions._floor")),
    Law("sign of infinity", "finite", "inf + x > 0 and not -inf + x > 0", "True", ("choices._positive",), (), "finite"),
    Law("constants as fractions", "finite", "Fraction(float(x)).limit_denominator(10**6)", "x",
        ("functions._meant", "functions.constant_number"),
        (), "constants are rounded"),
    # Sums over iterators, guards
    Law("guards", "finite", "(x if c and d else 0)", "((x if c else 0) if d else 0)", ("algebra.guarded",)),
    Law("guards taken apart", "finite", "(x if not (c and d) else 0)", "(x if not c else 0) + (x if c and not d else 0)",
        ("algebra.pieces", "scopes._otherwise")),
    Law("guards joined", "finite", "(x if i < k else 0) + (x if k <= i and i < n else 0)", "(x if i < n else 0)", _JOINING, ("k <= n",)),
    Law("guards that follow", "finite", "(x if i < k and i < n else 0)", "(x if i < k else 0)", ("joining._needed",), ("k <= n",)),
    Law("nested sums", "finite", "sum(sum(f[i] * g[j] for j in range(k)) for i in range(n))",
        "sum(f[i] * g[j] for i in range(n) for j in range(k))",
        ("algebra.bind", "algebra.apart", "scopes.total")),
    Law("one value of a range", "finite", "sum(f[j] for j in range(n) if j == i)", "(f[i] if 0 <= i and i < n else 0)", ("scopes.tidy",)),
    Law("nothing varies", "finite", "sum(x for j in range(n))", "n * x", ("scopes.tidy", "choices.count", "choices.index_number")),
    Law("digits of a range", "finite", "sum(f[j % 2] * g[j // 2] for j in range(2 * k))",
        "sum(f[b] * g[a] for a in range(k) for b in range(2))",
        ("digits.substitution", "digits._digits", "scopes._simpler_sums")),
    Law("congruence solved", "finite", "sum(h[j] for j in range(n) if (2 * j + i) % 3 == k % 3)",
        "sum(h[3 * a + (k - i) * 2 % 3] for a in range(3) if 3 * a + (k - i) * 2 % 3 < n)", ("digits._congruence",)),
    Law("product of products", "finite", "prod(f[i] * g[i] for i in range(n))",
        "prod(f[i] for i in range(n)) * prod(g[i] for i in range(n))",
        ("scopes.product_over", "scopes._product_over", "scopes._product")),
    Law("product in parts", "finite", "prod(f[i] if i < k else x for i in range(n))",
        "prod(f[i] for i in range(n) if i < k) * prod(x for i in range(n) if not i < k)", ("scopes._product_over",)),
    Law("table summed", "finite", "sum(f[j] * g[j] * x for j in range(n))", "sum(f[j] * g[j] for j in range(n)) * x",
        ("tables.contracted",)),
    Law("table without zeros", "finite", "(f[0], 0, 0)[i % 3] * x", "(f[0] * x if i % 3 == 0 else 0)",
        ("tables.tabulated", "tables.replaced")),
    # Conditions over indices
    Law("lower of two bounds", "integers", "0 <= v + c and 0 <= v + d", "0 <= v + min(c, d)", ("conditions._conjunction",)),
    Law("bounds that meet", "integers", "0 <= v + c and 0 <= -v - c", "v + c == 0", ("conditions._conjunction",)),
    Law("bounds that exclude each other", "integers", "0 <= v + c and 0 <= -v - d", "False", ("conditions._conjunction",), ("c < d",)),
    Law("bound from an equation", "integers", "v + c == 0 and 0 <= v + d", "v + c == 0", ("conditions._conjunction",), ("d >= c",)),
    Law("inequation from a bound", "integers", "v + c != 0 and 0 <= v + d", "0 <= v + d", ("conditions._conjunction",), ("d < c",)),
    Law("bound negated", "integers", "not 0 <= v", "0 <= -v - 1", ("conditions.negation",)),
    Law("bound over numbers negated", "reals", "not x < y", "y <= x", ("conditions.negation",)),
    Law("condition written as a difference", "reals", "x < y", "0 < y - x", ("conditions._over_reals", "conditions._condition")),
)  # fmt: skip
PASSING = (
    "__init__.normalise", "algebra.only_term", "algebra.ordered", "conditions._written", "conditions.condition", "conditions.conjunction",
    "context._decide", "context.decide", "context.single", "domains._asked", "domains._cases", "domains._factors", "extrema._extremum",
    "functions.call", "functions.opaque", "naming._unique_factor", "naming._unique_term", "naming.close", "naming.close_term",
    "naming.map_factor", "naming.open_term", "naming.rename_condition", "naming.rename_factor", "naming.rename_term", "naming.unique",
    "needs._elements", "products.split_constant", "scopes._alternatives", "scopes._at", "scopes._chosen", "scopes._placed_conditions",
    "scopes._rebuild_term", "scopes._resolved", "scopes.at", "scopes.build", "scopes.conditions", "scopes.extremum", "scopes.rebuild",
    "scopes.rebuild_factor", "scopes.scalar", "signs.split_offset", "tables._element",
)  # fmt: skip
"""Functions that return values or conditions without a law of their own: they call functions that apply laws, or rename iterators."""


def table() -> str:
    """Return the laws as rows of a page."""
    rows = []
    for law in LAWS:
        given = f", for `{'`, `'.join(law.given)}`" if law.given else ""
        asks = law.asks or "-"
        used = ", ".join(f"`{name}`" for name in law.used)
        rows.append(f"| {law.name} | `{law.left}` = `{law.right}`{given} | {asks} | {used} | {law.way} |")
    ways = [f"* *{way}*: {text}" for way, text in HOW.items()]
    return "\n".join(["| law | statement | records | used in | tested by |", "|---|---|---|---|---|", *rows, "", *ways, ""])
