"""Render the results of a run as one self-contained page without external scripts, fonts or images.

A program is drawn as a layered graph: kernels are in rows by their longest path from the inputs, with lines to their operands. The drawing
is deterministic and needs no other package. In long programs, a chain of kernels becomes one box.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources

import jinja2

from egraph.optimize.outcome import Growth, KernelRow, Outcome, summary
from egraph.optimize.stitched import svg
from egraph.policy import changes

MOST_BOXES = 90
BOX_WIDTH, BOX_HEIGHT, GAP_X, GAP_Y, MARGIN = 168, 40, 16, 26, 12
LETTER_WIDTH = 6.6
SWEEPS = 4


@dataclass(frozen=True)
class Box:
    """One kernel, or a chain of kernels; ``operands`` are positions of other boxes."""

    title: str
    subtitle: str
    time_us: float
    kind: str
    operands: tuple[int, ...]
    tooltip: str


@dataclass(frozen=True)
class Placed:
    """A box and the position of its top left corner."""

    box: Box
    x: float
    y: float


def boxes(rows: Sequence[KernelRow]) -> tuple[Box, ...]:
    """Return one box per kernel or, if these are too many, per chain: each kernel is the one before's only reader and reads only it."""
    chains = [[i] for i in range(len(rows))] if len(rows) <= MOST_BOXES else _chains(rows)
    home = {i: number for number, chain in enumerate(chains) for i in chain}
    return tuple(
        _box([rows[i] for i in chain], tuple(sorted({home[o] for i in chain for o in rows[i].operands} - {number})))
        for number, chain in enumerate(chains)
    )


def _chains(rows: Sequence[KernelRow]) -> list[list[int]]:
    readers = [0] * len(rows)
    for row in rows:
        for operand in row.operands:
            readers[operand] += 1
    chains: list[list[int]] = []
    home: dict[int, list[int]] = {}
    for i, row in enumerate(rows):
        last = row.operands[0] if len(row.operands) == 1 and readers[row.operands[0]] == 1 else None
        chain = home[last] if last is not None and home[last][-1] == last else []
        if not chain:
            chains.append(chain)
        chain.append(i)
        home[i] = chain
    return chains


def _box(rows: Sequence[KernelRow], operands: tuple[int, ...]) -> Box:
    time_us = sum(row.time_us for row in rows)
    costliest = max(rows, key=lambda row: row.time_us)
    name = rows[0].name if len(rows) == 1 else f"{len(rows)} kernels: {costliest.name} ..."
    shape = rows[-1].shape.removeprefix("float32")
    tooltip = "\n".join(f"{row.name}  {row.shape}  {row.time_us:.1f} us  {row.implementation}" for row in rows)
    return Box(name, f"{shape}  {time_us:.1f} us", time_us, costliest.kind, operands, tooltip)


def arrange(drawn: Sequence[Box]) -> tuple[Placed, ...]:
    """Place every box: its row by its longest path, its position in the row by the mean of its neighbours, in a few sweeps."""
    layer = [0] * len(drawn)
    for i, box in enumerate(drawn):
        layer[i] = max((layer[o] + 1 for o in box.operands if o < i), default=0)
    rows: list[list[int]] = [[i for i in range(len(drawn)) if layer[i] == depth] for depth in range(max(layer, default=-1) + 1)]
    readers: list[list[int]] = [[] for _ in drawn]
    for i, box in enumerate(drawn):
        for operand in box.operands:
            readers[operand].append(i)
    position = {i: float(p) for row in rows for p, i in enumerate(row)}
    for sweep in range(SWEEPS):
        for row in rows if sweep % 2 == 0 else reversed(rows):
            around = {i: list(drawn[i].operands) if sweep % 2 == 0 else readers[i] for i in row}
            row.sort(key=lambda i: (sum(position[n] for n in around[i]) / len(around[i]) if around[i] else position[i], i))
            position.update({i: float(p) - len(row) / 2 for p, i in enumerate(row)})
    widest = max((len(row) for row in rows), default=0)
    return tuple(
        Placed(
            drawn[i],
            MARGIN + (widest - len(row)) * (BOX_WIDTH + GAP_X) / 2 + p * (BOX_WIDTH + GAP_X),
            MARGIN + depth * (BOX_HEIGHT + GAP_Y),
        )
        for i, depth, row, p in sorted((i, depth, row, p) for depth, row in enumerate(rows) for p, i in enumerate(row))
    )


def draw(rows: Sequence[KernelRow]) -> str:
    """Return the program as inline SVG."""
    drawn = boxes(rows)
    placed = arrange(drawn)
    width = max((p.x for p in placed), default=0.0) + BOX_WIDTH + MARGIN
    height = max((p.y for p in placed), default=0.0) + BOX_HEIGHT + MARGIN
    slowest = max((box.time_us for box in drawn), default=0.0) or 1.0
    label = 'role="img" aria-label="kernels and their operands"'
    lines = [f'<svg class="graph" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" {label}>']
    for user in placed:
        for operand in user.box.operands:
            producer = placed[operand]
            x1, y1 = producer.x + BOX_WIDTH / 2, producer.y + BOX_HEIGHT
            x2, y2 = user.x + BOX_WIDTH / 2, user.y
            middle = (y1 + y2) / 2
            curve = f"M{x1:.0f} {y1:.0f} C{x1:.0f} {middle:.0f} {x2:.0f} {middle:.0f} {x2:.0f} {y2:.0f}"
            lines.append(f'<path class="edge" d="{curve}"/>')
    for user in placed:
        box = user.box
        heat = BOX_WIDTH * box.time_us / slowest
        lines.append(
            f'<g class="box {box.kind}"><title>{escape(box.tooltip)}</title>'
            f'<rect x="{user.x:.0f}" y="{user.y:.0f}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6"/>'
            f'<rect class="heat" x="{user.x:.0f}" y="{user.y + BOX_HEIGHT - 4:.0f}" width="{heat:.1f}" height="4"/>'
            f'<text x="{user.x + 8:.0f}" y="{user.y + 16:.0f}">{escape(_shortened(box.title))}</text>'
            f'<text class="small" x="{user.x + 8:.0f}" y="{user.y + 30:.0f}">{escape(_shortened(box.subtitle))}</text></g>'
        )
    return "\n".join([*lines, "</svg>"])


def _shortened(text: str) -> str:
    most = int((BOX_WIDTH - 16) / LETTER_WIDTH)
    return text if len(text) <= most else text[: most - 1] + "…"


CHART_WIDTH, CHART_HEIGHT, CHART_MARGIN = 640, 180, 34
NAMES = {
    "onnxruntime": "onnxruntime, all optimisations",
    "unoptimized": "this program, one kernel a node",
    "optimized": "optimised",
}


def render(outcome: Outcome) -> str:
    """Return report.html."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(time=format_time, count=format_count, size=format_size)
    template = environment.from_string(resources.files("egraph.optimize").joinpath("report.html.j2").read_text(encoding="utf-8"))
    times_us = {name: us for name in NAMES if (us := outcome.latency_us[name]) is not None}
    kernels = outcome.kernels or outcome.before
    page: str = template.render(
        o=outcome,
        bars=[(NAMES[name], us, 100 * us / max(times_us.values()), name) for name, us in times_us.items()],
        kernels=kernels,
        kernel_total_us=sum(row.time_us for row in kernels) or 1.0,
        after=draw(outcome.kernels) if outcome.kernels else "",
        before=draw(outcome.before),
        growth=growth_chart(outcome.growth),
        stitched=[(stitched, svg(stitched)) for stitched in outcome.stitched],
        precision=precision_chart(outcome),
        refusals=summary(outcome.refused),
        policy=changes(outcome.options.get("policy", {})) or "as shipped",
        tried=[s for s in outcome.rule_statistics if s["rule"] not in {rule.name for rule in outcome.rules}],
    )
    return page


POINTS = {"float32": "float32", "chosen": "shipped", "rounded": "rounded wherever that is faster"}
LEAST_ERROR = 1e-8
"""Smallest error of the chart; smaller errors are drawn as this one."""


def precision_chart(outcome: Outcome) -> str:
    """Return an SVG chart of error over time of programs of several precisions, with the tolerance; the error's axis is logarithmic."""
    shown = {name: program for name, program in outcome.precisions.items() if math.isfinite(program.error)}
    if not shown:
        return ""
    accepted = max(float(outcome.options["tolerance"]["relative"]), LEAST_ERROR)
    logs = [math.log10(max(program.error, LEAST_ERROR)) for program in shown.values()] + [math.log10(accepted)]
    low, high = min(logs) - 0.5, max(logs) + 0.5
    slowest_us = max(program.time_us[0] for program in shown.values()) or 1.0
    base = CHART_HEIGHT - CHART_MARGIN

    def height(error: float) -> float:
        return base - (math.log10(max(error, LEAST_ERROR)) - low) / (high - low) * (base - CHART_MARGIN)

    right = CHART_WIDTH - CHART_MARGIN
    lines = [
        f'<svg class="chart" viewBox="0 0 {CHART_WIDTH} {CHART_HEIGHT}" role="img" aria-label="error over time by precision">',
        f'<line class="axis" x1="{CHART_MARGIN}" y1="{base}" x2="{right}" y2="{base}"/>',
        f'<line class="limit" x1="{CHART_MARGIN}" y1="{height(accepted):.1f}" x2="{right}" y2="{height(accepted):.1f}"/>',
        f'<text x="{right}" y="{height(accepted) - 4:.1f}" text-anchor="end">tolerance {accepted:g}</text>',
    ]
    labels: dict[tuple[float, float], list[str]] = {}
    for name, program in shown.items():
        time_us, how = program.time_us
        x = CHART_MARGIN + 0.6 * time_us / slowest_us * (right - CHART_MARGIN)
        label = labels.setdefault((x, height(program.error)), [f"{format_time(time_us)}{how}, error {program.error:.2g}"])
        label.insert(-1, POINTS[name])
    for (x, y), label in labels.items():
        lines.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4"/><text x="{x + 8:.1f}" y="{y + 4:.1f}">{escape(", ".join(label))}</text>')
    lines.append(f'<text x="{CHART_MARGIN}" y="{CHART_HEIGHT - 10}">time of a run</text>')
    return "\n".join([*lines, "</svg>"])


def growth_chart(growth: Sequence[Growth]) -> str:
    """Return the e-graph's size by iteration as an SVG line chart."""
    if not growth:
        return ""
    most = max(g.e_nodes for g in growth) or 1
    base = CHART_HEIGHT - CHART_MARGIN
    step = (CHART_WIDTH - 2 * CHART_MARGIN) / max(1, len(growth) - 1)

    def line(values: Sequence[int]) -> str:
        return " ".join(f"{CHART_MARGIN + i * step:.1f},{base - v / most * (base - CHART_MARGIN):.1f}" for i, v in enumerate(values))

    return (
        f'<svg class="chart" viewBox="0 0 {CHART_WIDTH} {CHART_HEIGHT}" role="img" aria-label="e-nodes and e-classes by iteration">'
        f'<line class="axis" x1="{CHART_MARGIN}" y1="{base}" x2="{CHART_WIDTH - CHART_MARGIN}" y2="{base}"/>'
        f'<polyline class="nodes" points="{line([g.e_nodes for g in growth])}"/>'
        f'<polyline class="classes" points="{line([g.e_classes for g in growth])}"/>'
        f'<text x="{CHART_MARGIN}" y="{CHART_MARGIN - 12}">{growth[-1].e_nodes} e-nodes, {growth[-1].e_classes} e-classes</text>'
        f'<text x="{CHART_MARGIN}" y="{CHART_HEIGHT - 10}">iteration 1</text>'
        f'<text x="{CHART_WIDTH - CHART_MARGIN}" y="{CHART_HEIGHT - 10}" text-anchor="end">iteration {len(growth)}</text></svg>'
    )


def format_time(us: float | None) -> str:
    """Return microseconds in the most readable unit."""
    if us is None or us == float("inf"):
        return "-"
    if us >= 1e6:
        return f"{us / 1e6:.2f} s"
    return f"{us / 1e3:.2f} ms" if us >= 1e3 else f"{us:.1f} µs"


def format_count(value: float) -> str:
    """Return a number with a metric prefix."""
    for limit, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.1f} {prefix}"
    return f"{value:.0f} "


def format_size(size_bytes: float) -> str:
    """Return bytes in binary units."""
    for limit, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size_bytes >= limit:
            return f"{size_bytes / limit:.1f} {unit}"
    return f"{size_bytes:.0f} B"
