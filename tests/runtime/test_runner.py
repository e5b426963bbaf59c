"""Jobs run where the runner decides: results keep their order, jobs that die are run again, and a lost machine loses no record."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.devices import HOST, device
from runtime.profile import Database
from runtime.profile.cluster import measure_on_cluster
from runtime.runner import Cluster, JobLost, Processes, Runner, open_runner, parse_runner
from tests.runtime.test_jobs import write

OPERATORS = ("Relu", "Tanh", "Sigmoid", "Exp", "Abs", "Sqrt")
NEEDS_RAY = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: make test-ray")


def square(number: int) -> int:
    return number * number


def dies_once(number: int, folder: str) -> int:
    """End the process that runs the third job, but only the first time."""
    met = Path(folder) / str(number)
    if number == 3 and not met.exists():
        met.write_text("")
        os._exit(1)
    return number


def dies(number: int) -> int:
    os._exit(number)


def fails(number: int) -> int:
    raise ValueError(f"no {number}")


def check(runner: Runner, folder: Path) -> None:
    assert list(runner.run(square, [(number,) for number in range(7)])) == [number**2 for number in range(7)]
    assert list(runner.run(square, [])) == []
    assert list(runner.run(dies_once, [(number, str(folder)) for number in range(7)])) == list(range(7))
    with pytest.raises(ValueError, match="no 5"):
        list(runner.run(fails, [(5,)]))
    with pytest.raises(JobLost, match="died"):
        list(runner.run(dies, [(1,)]))
    assert list(runner.run(square, [(2,)])) == [4]  # earlier failures do no harm


def test_processes_run_jobs_in_order_and_again_where_one_dies(tmp_path: Path) -> None:
    with open_runner("processes:2") as runner:
        check(runner, tmp_path)


def test_results_come_before_later_jobs_are_done(tmp_path: Path) -> None:
    with Processes(1) as runner:
        results = runner.run(waits_for, [(str(tmp_path / "none"), 0.0), (str(tmp_path / "go"), 20.0)])
        assert next(results) is False
        (tmp_path / "go").write_text("")
        assert next(results) is True


def waits_for(path: str, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until and not Path(path).exists():
        time.sleep(0.01)
    return Path(path).exists()


@pytest.mark.parametrize("text", ["", "threads", "processes:0", "processes:x", "rays"])
def test_what_names_no_runner_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="names no runner: processes, processes:N, ray or ray:ADDRESS"):
        parse_runner(text)


@pytest.fixture
def cluster() -> Iterator[object]:
    """Yield a cluster whose head has no cores, so that jobs run on two nodes that may be killed."""
    from ray.cluster_utils import Cluster as Nodes

    nodes = Nodes(initialize_head=True, head_node_args={"num_cpus": 0})
    yield nodes
    nodes.shutdown()


@NEEDS_RAY
@pytest.mark.filterwarnings("ignore")
def test_a_cluster_runs_jobs_in_order_and_again_where_one_dies(cluster: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    cluster.add_node(num_cpus=2)  # type: ignore[attr-defined]
    with Cluster(cluster.address) as runner:  # type: ignore[attr-defined]
        check(runner, tmp_path)


@NEEDS_RAY
@pytest.mark.filterwarnings("ignore")
def test_a_machine_that_is_lost_while_it_measures_costs_no_record(
    cluster: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    jobs = write(tmp_path / "jobs.zip", tmp_path / "kernels", OPERATORS)
    first, _ = (cluster.add_node(num_cpus=1) for _ in range(2))  # type: ignore[attr-defined]
    database, lines = Database.in_memory(), tmp_path / "records.jsonl"
    with Cluster(cluster.address) as runner:  # type: ignore[attr-defined]
        with pytest.raises(ValueError, match="no machine of the cluster is 'another'"):
            measure_on_cluster(runner, tmp_path / "jobs.zip", database, named_device="another")
        told: list[str] = []

        def tell(line: str) -> None:
            if not told:
                cluster.remove_node(first, allow_graceful=False)  # type: ignore[attr-defined]
            told.append(line)

        done = measure_on_cluster(runner, tmp_path / "jobs.zip", database, output=lines, batch=1, tell=tell)
    assert len(done.records) == len(jobs) == len(lines.read_text().splitlines()) and not done.remaining and not done.foreign
    assert [record.fragment for record in done.records] == [job.fragment for job in jobs]
    assert {record.status for record in done.records if record.fragment != "Sigmoid"} == {"ok"}
    assert any("a machine was lost" in line for line in told)
    assert database.get(*jobs[0].key(device(HOST).key(1))) == done.records[0]
