"""Test the thread pool beside other work: tasks that a worker does not begin are run by others, with equal results and no deadlock."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.paths import ROOT

HELPERS = r"""
#define _GNU_SOURCE
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>
#define EXPORT __attribute__((visibility("default")))

/* A signal whose handler waits keeps a worker from running, as another process on its core does. */
static atomic_int held, released;
static void wait_inside(int number) { atomic_fetch_add(&held, 1); while (!atomic_load(&released)) usleep(500); atomic_fetch_sub(&held, 1); }
EXPORT void hold(int thread) {
    struct sigaction action = {.sa_handler = wait_inside};
    sigaction(SIGTRAP, &action, 0);
    int before = atomic_load(&held);
    atomic_store(&released, 0);
    syscall(SYS_tgkill, getpid(), thread, SIGTRAP);
    while (atomic_load(&held) == before) usleep(100);
}
EXPORT void release(void) { atomic_store(&released, 1); while (atomic_load(&held)) usleep(100); }

enum { MOST = 16 };
static struct { int (*number)(void), (*team)(void); void (*barrier)(void); int kind, spins; } how;
static int runs[MOST], threads[MOST], controls[MOST], order[MOST];
static atomic_int begun, ended;
EXPORT void prepare(void *number, void *team, void *barrier, int kind) {
    how.number = number, how.team = team, how.barrier = barrier, how.kind = kind;
    begun = ended = 0;
    for (int i = 0; i < MOST; i++) runs[i] = threads[i] = controls[i] = 0, order[i] = -1;
}
enum { FREE, BARRIER, WATCHING };
EXPORT void member(void *data) {
    int number = how.number();
    order[atomic_fetch_add(&begun, 1)] = number;
    if (how.kind == BARRIER) how.barrier();
    if (how.kind == WATCHING) while (atomic_load(&begun) < how.team()) usleep(10);
    runs[number]++, threads[number] = (int)syscall(SYS_gettid);
#if defined(__x86_64__)
    controls[number] = (int)(__builtin_ia32_stmxcsr() & 0x8040);
#endif
    usleep(*(int *)data);
}
EXPORT const int *get(int which) { return which == 0 ? runs : which == 1 ? threads : which == 2 ? controls : order; }
"""
SETUP = f"""
import ctypes, os, platform, sys, tempfile, threading, time
from pathlib import Path
import numpy as np
from runtime.devices.cpu import openmp
from runtime.devices.cpu.dispatcher import StepRecord, load
from runtime.devices.cpu.native.build import build
HELPERS = {HELPERS!r}
FREE, BARRIER, WATCHING = range(3)
WITH_TEAM, HELD, ALONE = range(3)
with tempfile.TemporaryDirectory() as folder:
    source = Path(folder) / "helpers.c"
    source.write_text(HELPERS)
    helpers = ctypes.CDLL(str(build(source)))
helpers.get.restype = ctypes.POINTER(ctypes.c_int)
helpers.prepare.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int]
pool = openmp.pool()
address = lambda name: ctypes.cast(getattr(pool, name), ctypes.c_void_p).value
tasks = lambda: set(map(int, os.listdir("/proc/self/task")))
me = threading.get_native_id()

def region(team, kind=FREE, manner=WITH_TEAM, microseconds=0):
    helpers.prepare(address("omp_get_thread_num"), address("omp_get_num_threads"), address("GOMP_barrier"), kind)
    pool.einsat_pool_run(manner)
    pool.GOMP_parallel(helpers.member, ctypes.byref(ctypes.c_int(microseconds)), team, 0)
    pool.einsat_pool_run(WITH_TEAM)
    return [list(helpers.get(which)[:team]) for which in range(4)]

before = tasks()
"""


def python(code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", SETUP + code, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_member_runs_once_whoever_takes_it() -> None:
    python("""
for team in (2, 3, 5, 16, 2):
    for kind in (FREE, BARRIER, WATCHING):
        for manner in (WITH_TEAM, HELD, ALONE) if kind != WATCHING else (WITH_TEAM, HELD):
            for repeat in range(100 if kind == FREE else 1):
                runs, threads, controls, order = region(team, kind, manner)
                assert runs == [1] * team and sorted(order) == list(range(team)), (team, kind, manner, runs)
                if kind == FREE and manner == ALONE:
                    assert set(threads) == {me} and order == list(range(team))
                elif kind != FREE:  # members that wait for each other need a thread each
                    assert len(set(threads)) == team, (team, kind, manner)
""")


def test_a_worker_that_never_comes_stops_nobody() -> None:
    """Others run its tasks with the caller's floating-point control. A region whose members wait for each other waits for the worker."""
    python("""
region(3, BARRIER)
first, second = sorted(tasks() - before)
dispatcher = load()
for keep in (False, True):
    control = dispatcher.set_subnormals(keep=keep)
    for held in ([first], [second], [first, second]):
        for thread in held:
            helpers.hold(thread)
        for _ in range(20):
            runs, threads, controls, order = region(3, microseconds=200)
            assert runs == [1] * 3 and not set(held) & set(threads), (held, threads)
            assert platform.machine() != "x86_64" or set(controls) == {0 if keep else 0x8040}, controls
        for kind in (BARRIER, WATCHING):
            start = time.monotonic()
            threading.Timer(0.2, helpers.release).start()
            assert len(set(region(3, kind)[1])) == 3 and time.monotonic() - start > 0.19
            for thread in held:
                helpers.hold(thread)
        helpers.release()
    dispatcher.restore(control)
""")


def test_regions_tell_whether_others_helped() -> None:
    python("""
region(2, BARRIER)
(worker,) = tasks() - before
shared = pool.einsat_pool_shared()
region(2, BARRIER, HELD)
assert pool.einsat_pool_shared() == shared + 1
region(2, FREE, HELD, 1000)
region(2, FREE, ALONE)
assert pool.einsat_pool_shared() == shared + 1
helpers.hold(worker)
late = pool.einsat_pool_late()
for _ in range(5):
    region(2, FREE, microseconds=1000)
assert pool.einsat_pool_shared() == shared + 1 and pool.einsat_pool_late() >= late + 4  # in the first it may be waking up
helpers.release()
""")


@pytest.mark.parametrize("threads", [2, 3])
def test_a_program_whose_workers_are_late_runs_on_one_thread_with_equal_results(threads: int) -> None:
    python(
        """
from runtime.executable import Executable
from tests.support.plans import matmul_relu
made, weights = matmul_relu(rows=100_000)
x = np.random.default_rng(0).standard_normal((100_000, 6), dtype=np.float32)
executable = Executable(made, weights, threads=int(sys.argv[1]))
expected = executable.run({"x": x})
table = executable.loaded.table.record
steps = (StepRecord * table.step_count).from_address(table.steps)
region(int(sys.argv[1]), BARRIER)
workers = tasks() - before

def check(runs):
    for _ in range(runs):
        for name, value in executable.run({"x": x}).items():
            np.testing.assert_array_equal(value, expected[name])

for worker in workers:
    helpers.hold(worker)
check(200)
assert steps[0].pace.delays >= 6 and steps[0].pace.mean_ns[1] > 0, "it has tried one thread"
assert all(step.runs_alone == 1 for step in steps)
time.sleep(0.05)
executable.run({"x": x})
assert steps[0].pace.fresh == 1 and steps[0].pace.mean_ns[0] == 0, "a pause makes it forget, and the first run tells nothing"
executable.run({"x": x})
assert steps[0].pace.fresh == 0 and steps[0].pace.mean_ns[0] > 0, "the second is timed"
alone_ns, steps[0].pace.mean_ns[1] = steps[0].pace.mean_ns[1], 10**12
executable.run({"x": x})
assert steps[0].pace.mean_ns[1] == 10**12, "what one thread took is remembered: the third run needs no trial"
steps[0].pace.mean_ns[1] = alone_ns
helpers.release()
deadline = time.monotonic() + 30
while steps[0].pace.delays >= 6 and time.monotonic() < deadline:
    check(20)
assert steps[0].pace.delays < 6, "the workers are back, and it has found out"
""",
        str(threads),
    )
