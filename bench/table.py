"""The benchmark's rows as a page of Markdown: times, ratios, errors, and notes on each row."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from bench.engines import OURS, WITHOUT_DERIVATIONS
from egraph.optimize.check_noise import NOISE_FACTOR
from egraph.optimize.trial import PLAIN

Row = Mapping[str, Any]
FEW_RUNS = 5
"""Times of fewer runs are printed with their number."""
ASKED_GAIN = 1.25
"""The required speedup over the best peer, in the mean over models."""
BOUND_SHARE = 0.7
"""The fraction of the best peer's time from which a model's products limit the gain."""
ASKED_RATE = 0.85
"""The fraction of the rate of large products that is required of a model whose products limit it."""
REMARKABLE_ERROR = 1e-4
"""The error from which each engine's rounding error is printed, onnxruntime's included."""
COUNTED = """Counted: everything from numpy inputs to numpy outputs through each engine's Python call, 32-bit floats. Inputs are
random: normal floats and token ids, masks of ragged rows; PP-OCR reads drawn text, NudeNet parts of photographs.
Not counted: loading, compiling, optimising (reported on their own). Medians of runs in turns, each engine in its own process.
`cold`: seconds to optimise with nothing measured or compiled; `warm`: once more, with what the first run measured.
`over best peer`: against the fastest of the other engines that were asked for, by medians; `by turns`: the least of the
peers' ratios turn by turn (Hodges and Lehmann's middle), which a machine whose speed changes every few seconds moves less.
torch_compile is inductor with frozen weights,
where that computes the same, and without max-autotune, tvm is TVM without tuning, both with constants folded by onnxruntime. Sums of
products of bytes are exact in onnxruntime, on processors without VNNI by its own option. `error`: the
largest difference of an output over its largest magnitude, against onnxruntime on the original model, on three such inputs
at batch 1 and on one at more. `over rules only`: against our own optimiser with --no-derivations; `predicted gain`: what
the sums of kernels' costs of both say of that; `predicted`: the sum of its kernels' costs over `einsat ms`, calls and all.
`products`: the share of the best peer's time that the model's products alone would take, multiplied directly at the rate at which
onnxruntime multiplies two matrices of 1024 x 1024, measured after the row. `asked`: what is asked over the best peer, 1.25; where
`products` is above 0.7, that is only possible by fewer multiplications: 0.85 of that rate is asked instead, and not to be behind."""
COLUMNS = (
    "model", "batch", "weights", "einsat ms", "onnxruntime ms", "best peer ms", "over onnxruntime", "over best peer",
    "by turns", "products", "asked", "over rules only", "predicted gain", "predicted", "error", "cold s", "warm s", "commit", "note",
)  # fmt: skip


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(sum(math.log(v) for v in values) / len(values)) if values else float("nan")


def ratio(row: Row, peer: str) -> float | None:
    """Return how many times faster than a peer we are; None if either has no time."""
    times = row.get("median_us", {})
    return times[peer] / times["einsat"] if "error" not in row and peer in times and "einsat" in times else None


def predicted(row: Row) -> float | None:
    """Return the predicted time of the shipped program over the time in this table; None if onnxruntime was shipped."""
    predicted_us, measured_us = row.get("optimize", {}).get("predicted_us"), row.get("median_us", {}).get("einsat")
    return predicted_us / measured_us if predicted_us and measured_us else None


def predicted_gain(row: Row) -> float | None:
    """Return how many times faster than without derivations we are by costs; None if either has none."""
    costs = row.get("predicted_us", {})
    predicted_us, without = costs.get("einsat"), costs.get(WITHOUT_DERIVATIONS)
    return without / predicted_us if predicted_us and without else None


def best_peer(row: Row) -> str | None:
    peers = {name: time_us for name, time_us in row.get("median_us", {}).items() if name not in OURS}
    return min(peers, key=lambda name: peers[name], default=None)


def least_by_turns(row: Row) -> float | None:
    """Return how many times faster than the fastest peer we are, turn by turn; None if that was not measured."""
    return min((ratio for name, ratio in row.get("by_turns", {}).items() if name not in OURS), default=None)


def products_share(row: Row) -> float | None:
    """Return the fraction of the best peer's time that products alone take at the rate of large ones; None if it was not measured."""
    best, products_us = best_peer(row), row.get("products_us")
    return products_us / row["median_us"][best] if best and products_us is not None else None


def asked(row: Row) -> float | None:
    """Return the required speedup over a model's best peer; None if its products were not counted."""
    share = products_share(row)
    if share is None:
        return None
    return max(1.0, ASKED_RATE / share) if share > BOUND_SHARE else ASKED_GAIN


def note(row: Row) -> str:
    """Return the notes on a row's numbers."""
    notes = []
    optimized = row.get("optimize", {})
    if optimized.get("status") == "unchanged":
        notes.append("nothing faster was found: onnxruntime runs the model unchanged")
        programs = [finalist for finalist in optimized.get("finalists", []) if finalist["name"] != PLAIN]
        if programs:
            notes.append(best_program(min(programs, key=lambda finalist: finalist["predicted_us"])))
    elif opaque := optimized.get("kernels", {}).get("opaque", 0):
        notes.append(f"{opaque} parts run in onnxruntime")
    if derived := optimized.get("derivations"):
        notes.append("derived: " + ", ".join(f"{derivation['name']} ({derivation['uses']} kernels)" for derivation in derived))
    elif (offered := optimized.get("derived_programs", {"is_compared": False}))["is_compared"]:
        notes.append(f"{offered['programs']} derived programs were compared, the fastest found has none of them")
    notes += optimized.get("check_notes", [])
    if noise := row.get("noise"):
        notes.append(f"rounding alone moves onnxruntime's own outputs by {noise:.2g}: up to {NOISE_FACTOR:g} times that is no other result")
    if optimized.get("max_rel_err", 0.0) > REMARKABLE_ERROR and (rounding := row.get("rounding_error")):
        notes.append("error against 64-bit floats: " + ", ".join(f"{engine} {error:.1e}" for engine, error in rounding.items()))
    if few := {engine: runs for engine, runs in row.get("runs", {}).items() if runs < FEW_RUNS}:
        notes.append("few repeats: " + ", ".join(f"{engine} {runs}" for engine, runs in few.items()))
    if near_text := near(row):
        notes.append(near_text)
    if row.get("warm_is_the_same") is False:
        notes.append("the warm run chose another program")
    return "; ".join(notes).replace("|", "/")


def best_program(finalist: Mapping[str, Any]) -> str:
    """Return a note on the program with the lowest prediction, if the model was kept."""
    result = finalist["message"] or f"it took {finalist['measured_us'] / 1e3:.3f} ms in the race"
    return f"the best program was predicted to take {finalist['predicted_us'] / 1e3:.3f} ms: {result}"


def near(row: Row) -> str:
    """Return our time while the cores were nearest to each other, if they were not so all the time."""
    nearest_turns = row.get("near") or {"turns": {}}
    count, of = nearest_turns["turns"].get("einsat", (0, 0))
    if not 0 < count < of:
        return ""
    time_us, predicted_us = nearest_turns["median_us"]["einsat"], row.get("optimize", {}).get("predicted_us")
    ratio_text = f", predicted {predicted_us / time_us:.2f}" if predicted_us else ""
    turns = f"in {count} of {of} turns lines passed between cores quickly ({nearest_turns['line_ns']:.1f} ns)"
    return f"{turns}: {time_us / 1e3:.3f} ms{ratio_text}"


def line(row: Row) -> str:
    """Return a row of the table."""
    head = [row["model"], str(row["batch"]), row["weights"]]
    if "error" in row:
        last = row["error"].strip().splitlines()[-1] if row["error"].strip() else "no message"
        return _cells([*head, *[""] * (len(COLUMNS) - len(head) - 2), row["commit"], f"failed: {last[:200].replace('|', '/')}"])
    times, best = row["median_us"], best_peer(row)

    def shown(value: float | None, digits: int) -> str:
        return "" if value is None else f"{value:.{digits}f}"

    seconds = row["optimize_seconds"]
    return _cells(
        [
            *head,
            shown(times["einsat"] / 1e3, 3),
            shown(times["onnxruntime"] / 1e3 if "onnxruntime" in times else None, 3),
            f"{best} {times[best] / 1e3:.3f}" if best else "",
            shown(ratio(row, "onnxruntime"), 2),
            shown(_over_best(row), 2),
            shown(least_by_turns(row), 2),
            shown(products_share(row), 2),
            shown(asked(row), 2),
            shown(ratio(row, WITHOUT_DERIVATIONS), 2),
            shown(predicted_gain(row), 2),
            shown(predicted(row), 2),
            f"{row['optimize']['max_rel_err']:.1e}",
            shown(seconds["cold"], 0),
            shown(seconds.get("warm"), 0),
            row["commit"],
            note(row),
        ]
    )


def _cells(texts: Sequence[str]) -> str:
    return "| " + " | ".join(texts) + " |"


def _over_best(row: Row) -> float | None:
    best = best_peer(row)
    return ratio(row, best) if best else None


def means(rows: Sequence[Row]) -> list[str]:
    """Return the geometric means over the rows that have both times, one engine per line."""
    peers = sorted({name for row in rows for name in row.get("median_us", {})} - {"einsat"})
    ratios = {peer: [r for row in rows if (r := ratio(row, peer)) is not None] for peer in peers}
    best = [gain for row in rows if (gain := _over_best(row)) is not None]
    lines = [f"* over {peer}: {geometric_mean(ratios[peer]):.3f} on {len(ratios[peer])} rows" for peer in peers if ratios[peer]]
    if best:
        lines.append(f"* over the best peer of each: {geometric_mean(best):.3f} on {len(best)} rows")
    if paired := [gain for row in rows if "error" not in row and (gain := least_by_turns(row)) is not None]:
        lines.append(f"* over the best peer of each, turn by turn: {geometric_mean(paired):.3f} on {len(paired)} rows")
    if counted := [(gain, asked_gain) for row in rows if (gain := _over_best(row)) and (asked_gain := asked(row))]:
        lines.append(
            f"* asked of the {len(counted)} rows with counted products: {geometric_mean([each for _, each in counted]):.3f}, "
            f"reached by {sum(gain >= each for gain, each in counted)} of them"
        )
    return lines


def table(rows: Sequence[Row], where: Mapping[str, Any]) -> str:
    """Return the whole page."""
    versions = ", ".join(f"{name} {version}" for name, version in where["versions"].items())
    parts = [
        f"# Benchmark, {where['date']}",
        f"{where['cpu']}, {where['cores']} cores, {where['threads']} threads; Python {where['python']}, {versions}",
        f"`{where['command']}`",
        COUNTED,
        "\n".join([_cells(COLUMNS), "|---" * len(COLUMNS) + "|", *(line(row) for row in rows)]),
    ]
    if mean_lines := means(rows):
        parts.append("Geometric means of how many times faster:\n\n" + "\n".join(mean_lines))
    failed = [f"* {row['model']}, batch {row['batch']}, {engine}: {why}" for row in rows for engine, why in row.get("failed", {}).items()]
    if failed:
        parts.append("Engines that could not run a model:\n\n" + "\n".join(failed))
    return "\n\n".join(parts) + "\n"
