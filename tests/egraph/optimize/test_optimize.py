"""The command line end to end: results, exit codes, and no half-written files."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from egraph.errors import ModelError, RuleError
from egraph.optimize.admission import choose_rules
from egraph.optimize.arguments import parse, parse_seconds, parse_shape, parse_tolerance, to_options
from egraph.optimize.artefact import MANIFEST
from egraph.optimize.options import Allow
from egraph.optimize.output import destination, publish, staging
from egraph.optimize.stages import STAGES
from egraph.optimize.trial import NO_TIME_TO_COMPILE, ORIGINAL
from egraph.tolerance import Tolerance
from runtime.profile import Database, RaceTime
from tests.support.commands import SAME_PRICES, build_model, command, files_below, module_command

KEYS = [
    "model", "device", "threads", "status", "latency_us", "speedup", "max_rel_err", "check_notes", "inputs", "rules", "search", "extract",
    "finalists", "kernels", "seconds_total", "files",
]  # fmt: skip


@pytest.fixture(scope="module")
def optimised(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Mapping[str, object]]:
    """Return (model, output folder, --json object) of one cold run."""
    folder = tmp_path_factory.mktemp("optimised")
    model = build_model(folder / "m.onnx")
    out = folder / "out"
    shared = ("--threads", 1, "--budget", "20s", "--finalists", 2, *SAME_PRICES, "--database", folder / "p.sqlite")
    done = command(model, "-o", out, *shared, "--json", "-q", "--dump-dir", folder / "dumped")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.strip().splitlines()) == 1
    return model, out, json.loads(done.stdout)


def test_json_has_the_promised_keys(optimised: tuple[Path, Path, Mapping[str, Any]]) -> None:
    _, out, printed = optimised
    assert printed["status"] in ("faster", "unchanged")
    assert ("predicted_us" in printed) == (printed["status"] == "faster")
    assert [key for key in printed if key not in ("predicted_us", "predicted_by_estimates", "repeats", "in_place")] == KEYS
    assert set(printed["latency_us"]) == {"onnxruntime", "unoptimized", "optimized"}
    assert set(printed["search"]) == {"iterations", "e_nodes", "e_classes", "stop_reason", "seconds"}
    assert set(printed["kernels"]) == {"library", "eoperator", "opaque"}
    timed = {finalist["name"]: finalist for finalist in printed["finalists"]}
    assert "unoptimized" in timed and all((each["measured_us"] is None) == bool(each["message"]) for each in timed.values())
    shipped_us = [each["predicted_us"] for each in timed.values() if each["shipped"]]
    assert shipped_us == ([printed["predicted_us"]] if printed["status"] == "faster" else [])
    assert printed["files"] == [str(out / "m.opt.onnx"), str(out / "m.einsat")]


def test_every_stage_is_dumped_and_can_be_run_alone(optimised: tuple[Path, Path, Mapping[str, Any]], tmp_path: Path) -> None:
    folder = optimised[0].parent
    dumped = folder / "dumped"
    assert sorted(path.name for path in dumped.iterdir()) == [*sorted(f"{name}.txt" for name in STAGES), "weights.safetensors"]
    shared = ("--threads", 1, "--budget", "20s", "--finalists", 2, *SAME_PRICES, "--database", folder / "p.sqlite", "-q")
    for before, after in (("imported", "saturated"), ("saturated", "selected")):
        target = tmp_path / f"{after}.txt"
        done = command("--from", dumped / f"{before}.txt", "--to", target, *shared)
        assert done.returncode == 0 and done.stdout == f"wrote {target}\n", done.stderr
        assert target.read_text().split("\n")[1:] == (dumped / f"{after}.txt").read_text().split("\n")[1:]


def test_finalists_have_as_many_kernels_as_are_listed(optimised: tuple[Path, Path, Mapping[str, object]]) -> None:
    run = json.loads((optimised[1] / "m.einsat" / MANIFEST).read_text(encoding="utf-8"))["run"]
    kernels = {one["name"]: one["kernels"] for one in run["finalists"]}
    assert kernels["unoptimized"] == len(run["before"])
    assert run["shipped"] == "onnxruntime" or kernels[run["shipped"]] == len(run["kernels"])


def test_the_files_run_and_agree(optimised: tuple[Path, Path, Mapping[str, object]]) -> None:
    import onnxruntime

    from runtime import Session

    model, out, _ = optimised
    onnx.checker.check_model(str(out / "m.opt.onnx"))
    x = np.random.default_rng(1).standard_normal((5, 12), dtype=np.float32)
    want = onnxruntime.InferenceSession(str(model)).run(None, {"x": x})[0]
    np.testing.assert_allclose(onnxruntime.InferenceSession(str(out / "m.opt.onnx")).run(None, {"x": x})[0], want, atol=1e-5)
    with Session(out / "m.einsat", threads=1) as session:
        np.testing.assert_allclose(session.run(None, {"x": x})[0], want, atol=1e-5)
    assert sorted(path.name for path in out.iterdir()) == ["m.einsat", "m.opt.onnx"]


def test_a_frozen_run_repeats_the_same_bytes(optimised: tuple[Path, Path, Mapping[str, object]], tmp_path: Path) -> None:
    """All files are equal, including the generated machine code, and also if no kernel is in the compiler's cache."""
    model, out, _ = optimised
    shared = ("--threads", 1, "--budget", "20s", "--finalists", 2, *SAME_PRICES)
    arguments = (model, *shared, "--database", model.parent / "p.sqlite", "--frozen", "-q")
    for name, environment in (("first", {}), ("second", {"XDG_CACHE_HOME": str(tmp_path / "cache")})):
        done = command(*arguments, "-o", tmp_path / name, is_forked=not environment, **environment)
        assert done.returncode == 0, done.stderr
        assert files_below(tmp_path / name) == files_below(out)


def test_a_second_run_is_warm(optimised: tuple[Path, Path, Mapping[str, object]], tmp_path: Path) -> None:
    """The same command again measures nothing and writes the same bytes; --again and a larger budget continue the search."""
    model, out, _ = optimised
    database = shutil.copyfile(model.parent / "p.sqlite", tmp_path / "p.sqlite")
    arguments = (model, "--threads", 1, "--finalists", 2, *SAME_PRICES, "--database", database)
    same = command(*arguments, "--budget", "20s", "-o", tmp_path / "same")
    assert same.returncode == 0 and "the search of an earlier run is used (20 s budget" in same.stderr
    assert "] measure" not in same.stderr
    assert files_below(tmp_path / "same") == files_below(out)
    for more in (("--budget", "20s", "--again"), ("--budget", "21s")):
        done = command(*arguments, *more, "-o", tmp_path / "more")
        assert done.returncode == 0 and "] measure" in done.stderr and "earlier" not in done.stderr
    less = command(*arguments, "--budget", "20s", "-o", tmp_path / "less")
    assert "the search of an earlier run is used (21 s budget" in less.stderr


def test_searching_on_races_anew(optimised: tuple[Path, Path, Mapping[str, object]], tmp_path: Path) -> None:
    """A race that was disturbed is remembered until the search is made again."""
    model, _, _ = optimised
    path = shutil.copyfile(model.parent / "p.sqlite", tmp_path / "p.sqlite")
    with closing(Database.open(path)) as database:
        for record in list(database.rows(RaceTime)):
            database.put(replace(record, samples_us=(7e6,)))
    arguments = (model, "--threads", 1, "--finalists", 2, *SAME_PRICES, "--budget", "20s", "--database", path, "--json", "-q")
    repeated = command(*arguments, "-o", tmp_path / "repeated")
    assert set(json.loads(repeated.stdout)["latency_us"].values()) == {7e6}
    again = command(*arguments, "--again", "-o", tmp_path / "again")
    assert max(json.loads(again.stdout)["latency_us"].values()) < 7e6, "seconds for a small model"
    warm = command(*arguments, "-o", tmp_path / "warm")
    assert json.loads(warm.stdout)["latency_us"] == json.loads(again.stdout)["latency_us"], "and that is what is remembered now"


def test_without_time_the_model_is_kept_and_the_next_run_goes_on(tmp_path: Path) -> None:
    """If a choice could not be compiled and raced, the same command with more time does so."""
    model = build_model(tmp_path / "m.onnx")
    for budget, message in (("0.2s", NO_TIME_TO_COMPILE), ("20s", "")):
        out = tmp_path / budget
        done = command(model, "-o", out, "--threads", 1, "--budget", budget, "--finalists", 4, "--database", tmp_path / "p.sqlite", "-q")
        assert done.returncode == 0, done.stderr
        run = json.loads((out / "m.einsat" / MANIFEST).read_text(encoding="utf-8"))["run"]
        assert {one["message"] for one in run["finalists"]} == {message} and (run["shipped"] == ORIGINAL or not message)


def test_frozen_without_measurements_says_what_is_missing(optimised: tuple[Path, Path, Mapping[str, object]], tmp_path: Path) -> None:
    done = command(optimised[0], "-o", tmp_path / "out", "--threads", 1, "--database", tmp_path / "none.sqlite", "--frozen")
    assert done.returncode == 2
    assert "no end-to-end time of" in done.stderr and "without --frozen" in done.stderr
    assert not (tmp_path / "out").exists()


def test_inspect_shows_kernels_and_reasons(optimised: tuple[Path, Path, Mapping[str, object]]) -> None:
    model, out, _ = optimised

    def inspect(*arguments: object) -> subprocess.CompletedProcess[str]:
        return module_command("egraph.inspect", out / "m.einsat", *arguments)

    assert "MatMul" in inspect().stdout
    assert "before:" in inspect("--why", "left").stdout
    refused = inspect("--why-not", "relu_twice", "--at", "relu", "--model", model)
    assert "operand 0 of Relu must be Relu, it is MatMul" in refused.stdout, refused.stderr
    told = json.loads(inspect("--why-not", "relu_twice", "--at", "relu", "--model", model, "--json").stdout)
    assert told["applies"] is False and told["matched_operators"] == 1 and told["pattern_operators"] == 2
    unknown = inspect("--why-not", "relu_twic", "--at", "relu", "--model", model)
    assert unknown.returncode == 2 and "relu_twice" in unknown.stderr
    assert inspect("--why", "nowhere").returncode == 2


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "no model was given"),
        (("missing.onnx",), "missing.onnx"),
        (("m.onnx", "--skip-rule", "merge_matmul"), "did you mean merge_matmuls"),
        (("m.onnx", "--shape", "z:1,2"), "z"),
        (("m.onnx", "--shape", "x:5,12,1"), "x"),
        (("m.onnx", "--shape", "x=5"), "no input has a size 'x'"),
        (("m.onnx", "--rules", "none.py"), "none.py does not exist"),
        (("m.onnx", "--budget", "soon"), "is not a time"),
        (("broken.onnx",), "broken.onnx"),
    ],
)
def test_bad_input_is_refused_with_a_message_and_nothing_is_written(tmp_path: Path, arguments: tuple[str, ...], told: str) -> None:
    build_model(tmp_path / "m.onnx")
    (tmp_path / "broken.onnx").write_bytes((tmp_path / "m.onnx").read_bytes()[:100])
    before = files_below(tmp_path)
    placed = [str(tmp_path / a) if a.endswith((".onnx", ".py")) else a for a in arguments]
    done = command(*placed, "--database", tmp_path / "p.sqlite")
    assert done.returncode == 2, done.stderr
    assert told in done.stderr and "Traceback" not in done.stderr
    assert {name: data for name, data in files_below(tmp_path).items() if "sqlite" not in name} == before


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    model = build_model(tmp_path / "m.onnx")
    (tmp_path / "file").write_text("in the way")
    done = command(model, "-o", tmp_path / "file" / "out", "--database", tmp_path / "p.sqlite", "--threads", 1)
    assert done.returncode == 2 and "output folder" in done.stderr and "-o FOLDER" in done.stderr


def test_help_answers_at_once() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = command("--help", is_forked=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0 and "examples:" in done.stdout
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.0  # processor time: 0.1 s is used; all imports take 2 s


def test_rules_are_listed_with_equation_and_verdict() -> None:
    done = command("--list-rules")
    assert done.returncode == 0 and "relu(relu(x)) = relu(x)" in done.stdout and "  proved" in done.stdout


def test_user_rules_load_and_names_must_be_unique(tmp_path: Path) -> None:
    text = (
        "from egraph.rule import Equation, Tensor, rule\n\n@rule\ndef {name}(a: Tensor, b: Tensor, c: Tensor) -> Equation:\n"
        "    '''(a + b) + c = a + (b + c)'''\n    return (a + b) + c == a + (b + c)\n\nRULES = ({name},)\n"
    )
    (tmp_path / "mine.py").write_text(text.format(name="my_rule"))
    chosen = choose_rules([tmp_path / "mine.py"], [], allow="finite", unsafe=True)
    assert "my_rule" in [rule.name for rule in chosen]
    assert "my_rule" not in [rule.name for rule in choose_rules([tmp_path / "mine.py"], ["my_rule"], allow="finite", unsafe=True)]
    (tmp_path / "clash.py").write_text(text.format(name="relu_twice"))
    with pytest.raises(RuleError, match="two rules are called relu_twice"):
        choose_rules([tmp_path / "clash.py"], [], allow="finite", unsafe=False)
    (tmp_path / "wrong.py").write_text("RULES = 3\n")
    with pytest.raises(RuleError, match="no tuple RULES"):
        choose_rules([tmp_path / "wrong.py"], [], allow="finite", unsafe=False)
    (tmp_path / "raises.py").write_text("1 / 0\n")
    with pytest.raises(RuleError, match="ZeroDivisionError"):
        choose_rules([tmp_path / "raises.py"], [], allow="finite", unsafe=False)


def test_allow_excludes_classes_of_rounding() -> None:
    classes: tuple[Allow, ...] = ("exact", "reassociate", "finite")
    counts = [len(choose_rules([], [], allow=allow, unsafe=False)) for allow in classes]
    assert 0 < counts[0] < counts[1] < counts[2]
    assert all(rule.rounding == "exact" for rule in choose_rules([], [], allow="exact", unsafe=False))


def test_values_on_the_command_line() -> None:
    assert parse_shape("x:1,3,224") == parse_shape("x:1x3x224") == ("x", (1, 3, 224))
    assert parse_shape("a:0:4") == ("a:0", (4,)) and parse_shape("s:") == ("s", ())
    assert (parse_seconds("60s"), parse_seconds("1.5m"), parse_seconds("7")) == (60.0, 90.0, 7.0)
    assert parse_tolerance("1e-3,1e-5") == Tolerance(1e-3, 1e-5)
    with pytest.raises(ModelError, match="twice"):
        to_options(parse(["m.onnx", "--shape", "x:1", "--shape", "x:2"]))


def test_the_output_lies_where_it_is_wanted(tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    assert destination(model, None).model == tmp_path / "m.opt.onnx"
    assert destination(model, tmp_path / "to").artefact == tmp_path / "to" / "m.einsat"
    assert destination(model, tmp_path / "fast.onnx").artefact == tmp_path / "fast.einsat"
    assert destination(model, tmp_path / "fast.opt.onnx").artefact == tmp_path / "fast.einsat"  # a session looks for it there
    model.write_text("")
    with pytest.raises(ModelError, match="would replace the input"):
        destination(model, model)


def test_publishing_replaces_whole_folders_and_cleans_up(tmp_path: Path) -> None:
    place = destination(tmp_path / "m.onnx", None)
    place.artefact.mkdir()
    (place.artefact / "stale").write_text("old")
    with staging(place) as folder:
        results = folder / "results"
        (results / "m.einsat").mkdir(parents=True)
        (results / "m.einsat" / "plan.json").write_text("new")
        (results / "m.opt.onnx").write_text("new")
        assert publish(results, place) == (place.model, place.artefact)
    assert files_below(tmp_path) == {"m.opt.onnx": b"new", "m.einsat/plan.json": b"new"}


def test_what_cannot_be_replaced_stays_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = destination(tmp_path / "m.onnx", None)
    place.artefact.mkdir()
    (place.artefact / "plan.json").write_text("old")
    rename = Path.rename

    def refuse(self: Path, target: Path) -> Path:
        if self.parent.name == "results" and self.suffix == ".einsat":
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refuse)
    (tmp_path / "results" / "m.einsat").mkdir(parents=True)
    with pytest.raises(KeyboardInterrupt):
        publish(tmp_path / "results", place)
    assert files_below(tmp_path) == {"m.einsat/plan.json": b"old"}


def _fail_while_staging(folder: Path, error: type[BaseException]) -> None:
    with staging(destination(folder / "m.onnx", None)) as stage:
        (stage / "half").write_text("half")
        raise error


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_error_while_staging_leaves_no_trace(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error):
        _fail_while_staging(tmp_path, error)
    assert not list(tmp_path.iterdir())
    (tmp_path / "kept").mkdir()
    with pytest.raises(error):
        _fail_while_staging(tmp_path / "kept" / "new" / "newer", error)
    assert [path.name for path in tmp_path.rglob("*")] == ["kept"]


def test_a_full_disk_is_said(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no space is left"), staging(destination(tmp_path / "m.onnx", None)):
        raise OSError(28, "No space left on device")


def test_what_is_printed_arrives_before_the_process_ends_at_once() -> None:
    """The process ends without Python's shutdown, which would flush buffered output to a pipe, so it must be flushed before."""
    listed = command("--list-rules", is_forked=False, PYTHONUNBUFFERED="")
    assert listed.returncode == 0 and listed.stdout.endswith("\n")
    assert listed.stdout == command("--list-rules").stdout
