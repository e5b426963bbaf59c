"""Render what a run found out as one self-contained page: no script, no font, no image from anywhere else."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources

import jinja2

from egraph.optimize.outcome import Growth, Outcome, summary
from egraph.optimize.report_layout import draw
from egraph.policy import changes

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
        refusals=summary(outcome.refused),
        policy=changes(outcome.options.get("policy", {})) or "as shipped",
        tried=[s for s in outcome.rule_statistics if s["rule"] not in {rule.name for rule in outcome.rules}],
    )
    return page


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
    """Return microseconds in the unit that reads best."""
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
