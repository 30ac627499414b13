"""SIGINT, SIGTERM and SIGHUP end a command and all that it has started; a build goes on later.

`SHARDBEAM_FAULTS=long` (`make faults`) goes through 200 moments of each command.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from shardbeam.configs.decoding import MsgpackDecoder
from shardbeam.pipelines.cli.run import _end_early
from shardbeam.transforms.dataset.outcome import PlannedCounts, WriteProgress
from shardbeam.transforms.dataset.shard_result import ShardResult
from shardbeam.transforms.staging.lease import Lease
from shardbeam.transforms.staging.staging import TOTALS, Staging
from tests.support.builds import wait_for, wait_for_a_shard
from tests.support.crash_points import LONG
from tests.support.dataset import (
    COMMAND,
    TIMEOUT_S,
    Run,
    Tree,
    coco_words,
    finish,
    last_run,
    read_dataset,
    read_tree,
    run,
    start,
)
from tests.support.processes import worker_processes

# A signal may come too late where the machine is slow.
pytestmark = pytest.mark.timing

NOTHING = "nothing was written"

# Each shard is several files to be synced: enough to do for a signal to come between.
SHARDS = ("--set", "output.num_shards=100")
# Two beside the program.
WORKERS = ("--processes", "3")


@pytest.fixture(scope="module")
def dataset(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("expected") / "out"
    assert run(*coco_words(shapes, output, *SHARDS)).exit_code == 0
    return output


@pytest.fixture(scope="module")
def expected(dataset: Path) -> Tree:
    return read_dataset(dataset)


# Marks one shard as finished, and waits forever before it marks another one or commits.
ENDLESS = """
import signal, sys, threading

# Under nohup, the tests inherit that SIGHUP is ignored, and the command would, too.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
marked = []

def hold(event, arguments):
    if event == "os.rename" and str(arguments[1]).endswith(("/done", "/dataset_info.json")):
        marked.append(arguments[1])
        if len(marked) == 2:
            threading.Event().wait()

sys.addaudithook(hold)
from shardbeam.__main__ import console
sys.exit(console())
"""


def start_endless(*words: str, cwd: Path) -> subprocess.Popen[str]:
    """Starts a build that does not finish by itself, so that a signal always comes in time."""
    return start(*words, cwd=cwd, command=(sys.executable, "-c", ENDLESS))


@pytest.mark.slow
def test_nohup_is_respected(shapes: Path, expected: Tree, tmp_path: Path) -> None:
    output = tmp_path / "out"
    words = ["nohup", str(COMMAND), *coco_words(shapes, output, *SHARDS, *WORKERS)]
    process = subprocess.Popen(
        words,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    wait_for_a_shard(process, output)
    os.killpg(process.pid, signal.SIGHUP)
    result = finish(process)
    assert result.exit_code == 0, result.stderr
    assert read_dataset(output) == expected


def workers_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def check_gone(workers: list[psutil.Process]) -> None:
    assert psutil.wait_procs(workers, timeout=TIMEOUT_S)[1] == []


def check_interrupted(result: Run) -> str:
    """Checks how an interrupted command has ended; returns what its line says."""
    *progress, message = result.stderr.splitlines()
    assert result.exit_code == 130
    assert message.startswith("shardbeam: error: interrupted; ")
    assert all(line.startswith("shardbeam: ") for line in progress)
    return message.removeprefix("shardbeam: error: interrupted; ")


def is_ready(process: subprocess.Popen[str]) -> bool:
    """Returns whether a command handles signals yet, which is the first thing it does."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    (mask,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(mask, 16) >> (signal.SIGTERM - 1) & 1)


def interrupt_after(delay_s: float, words: list[str], *, number: int, cwd: Path) -> Run:
    """Interrupts a command as a terminal does, with all its processes, and checks that none stays.

    Args:
        delay_s: When, in seconds after it began to handle signals, unless it has ended by then.
        words: The command line.
        number: The signal.
        cwd: Its working folder.
    """
    process = start(*words, cwd=cwd)
    wait_for(lambda: is_ready(process), process)
    time.sleep(delay_s)
    children = workers_of(process) if process.poll() is None else []
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
    result = finish(process)
    check_gone(children)
    return result


@pytest.mark.faults
@pytest.mark.timeout(7200 if LONG else 300)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_build_interrupted_at_any_moment(
    seed: int, shapes: Path, expected: Tree, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    words = coco_words(shapes, output, *SHARDS, *(WORKERS if seed % 2 else ()))
    rng = random.Random(seed)
    for _ in range(50 if LONG else 1):
        number = rng.choice([signal.SIGINT, signal.SIGTERM])
        result = interrupt_after(rng.uniform(0.1, 5), words, number=number, cwd=tmp_path)
        state = read_tree(output)
        finished = sum(path.endswith("/done") for path in state)
        if result.exit_code == 0 or "dataset_info.json" in state:
            assert result.exit_code == 0 or "the dataset is committed" in check_interrupted(result)
            if (output / ".staging").exists():
                # It was committed, and not yet cleared up.
                assert run(*words).exit_code == 0
            assert read_dataset(output) == expected
            shutil.rmtree(output)
            continue
        said = re.match(r"(\d+) of 100 shards are finished", check_interrupted(result))
        # Shards finished between the line and the end are kept, too.
        assert finished >= (int(said[1]) if said else 0)
        assert result.stdout == ""
    assert run(*words).exit_code == 0
    assert read_dataset(output) == expected


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.timeout(7200 if LONG else 300)
@pytest.mark.parametrize(
    "command",
    ["plan", *(pytest.param(each, marks=pytest.mark.slow) for each in ("show", "sample"))],
)
def test_other_commands_interrupted_at_any_moment(
    command: str, shapes: Path, tmp_path: Path, dataset: Path
) -> None:
    words = {
        "plan": ["plan", *coco_words(shapes, tmp_path / "out")[1:]],
        "show": ["show", str(dataset), "--limit=40"],
        "sample": ["sample", "shapes", "--output=s", "--images=200", "--workers=2"],
    }[command]
    rng = random.Random(command)
    for _ in range(200 if LONG else 1):
        number = rng.choice([signal.SIGINT, signal.SIGTERM])
        result = interrupt_after(rng.uniform(0.1, 3), words, number=number, cwd=tmp_path)
        drawn = (tmp_path / "s" / "images").exists()
        if result.exit_code:
            said = check_interrupted(result)
            expected = "the sample is complete: s" if drawn else NOTHING
            assert said.startswith(expected)
        shutil.rmtree(tmp_path / "s", ignore_errors=True)
    assert list(tmp_path.iterdir()) == []


def test_sighup_ends_a_command_and_what_was_finished_is_resumed(
    shapes: Path, expected: Tree, tmp_path: Path
) -> None:
    """The terminal is gone: all processes get the signal."""
    output = tmp_path / "out"
    words = coco_words(shapes, output, *SHARDS)
    process = start_endless(*words, *WORKERS, cwd=tmp_path)
    wait_for_a_shard(process, output)
    workers = workers_of(process)
    os.killpg(process.pid, signal.SIGHUP)
    result = finish(process)
    assert result.exit_code == 130
    # Workers that the signal ends first may say so before.
    last = result.stderr.splitlines()[-1]
    assert last.endswith("shards are finished, and the same command goes on with the others")
    check_gone(workers)
    state = read_tree(output)
    assert "dataset_info.json" not in state
    shards = [
        MsgpackDecoder(ShardResult).decode(data)
        for path, data in state.items()
        if path.endswith("/done")
    ]
    assert 0 < len(shards) < 100
    # Every image makes one Example.
    images = sum(shard.examples for shard in shards)
    resumed = {"shards": len(shards), "examples": images, "images": images}

    again = run(*words, "--json", "--log-format", "json", exit_code=0)
    assert json.loads(again.stdout)["resumed"] == resumed
    assert last_run(output)["outcome"]["resumed"] == resumed
    # A line of progress is there only if somebody looked between the totals and the commit.
    for progress in map(json.loads, again.stderr.splitlines()):
        if progress.get("step") == "write":
            assert progress["shards_resumed"] <= len(shards)
            assert progress["images_resumed"] <= images
    assert read_dataset(output) == expected


@pytest.mark.parametrize(
    ("finished", "said"),
    [
        (0, "no shard was finished: the same command starts again"),
        (2, "2 of 3 shards are finished, and the same command goes on with the others"),
        (3, "all shards are finished, and the same command commits them"),
    ],
)
def test_what_is_said_of_finished_shards(finished: int, said: str, tmp_path: Path) -> None:
    staging = Staging(output=str(tmp_path), plan="plan", run_id="run")
    staging.write_state(TOTALS, PlannedCounts(shards=3, examples=30, num_bytes=300))
    for index in range(3):
        progress = WriteProgress(examples=10, finished=index < finished)
        staging.write_progress(progress, shard_key=f"{index}")
    assert _end_early(staging, lease=Lease(str(tmp_path))) == f"interrupted; {said}"


# Its main thread fails, and others write, while the signal's thread asks for its words.
ENDING = """
import os, signal, sys, threading
from shardbeam.pipelines.cli.logging import render_interrupt
from shardbeam.pipelines.interrupts import end_on_signals, say_when_interrupted

asked, ended = threading.Event(), threading.Event()

def answer():
    asked.set()
    ended.wait()
    return "interrupted; all is kept"

def write():
    asked.wait()
    for _ in range(1000):
        sys.stderr.write("10 of 20 shards\\n")
        print("a summary", flush=True)
    ended.set()
    while True:
        sys.stderr.write("20 of 20 shards\\n")

with end_on_signals(render_interrupt):
    say_when_interrupted("interrupted", ask=answer)
    threading.Thread(target=write, daemon=True).start()
    os.kill(os.getpid(), signal.SIGINT)
    asked.wait()
    HOW
"""


@pytest.mark.parametrize("how", ["raise RuntimeError('cancelled')", "sys.exit(1)", "pass"])
def test_nothing_else_has_the_last_word(how: str) -> None:
    command = [sys.executable, "-c", ENDING.replace("HOW", how)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert (ended.returncode, ended.stdout) == (130, "")
    assert ended.stderr == "shardbeam: error: interrupted; all is kept\n"


# Once the result is printed, what the process still waits for sends the signal and goes on.
LEAVING = """
import atexit, os, signal, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from shardbeam.pipelines.cli.logging import render_interrupt
from shardbeam.pipelines.interrupts import end_on_signals, say_when_interrupted

printed = threading.Event()

def linger():
    printed.wait()
    os.kill(os.getpid(), signal.NUMBER)
    time.sleep(30)

with end_on_signals(render_interrupt):
    say_when_interrupted("interrupted", ask=lambda: "interrupted; the dataset is committed")
    WAIT_FOR(linger)
    print("the result", flush=True)
printed.set()
sys.exit(3)
"""


@pytest.mark.parametrize(
    ("number", "wait_for"),
    [("SIGINT", "ThreadPoolExecutor().submit"), ("SIGTERM", "atexit.register")],
)
def test_a_signal_ends_a_command_that_has_printed_its_result(number: str, wait_for: str) -> None:
    script = LEAVING.replace("NUMBER", number).replace("WAIT_FOR", wait_for)
    command = [sys.executable, "-c", script]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert (ended.returncode, ended.stdout) == (130, "the result\n")
    assert ended.stderr == "shardbeam: error: interrupted; the dataset is committed\n"


def test_a_program_that_calls_the_command_keeps_its_own_handlers(tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert run("show", str(tmp_path)).exit_code == 1
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def wait_for_workers(process: subprocess.Popen[str]) -> list[psutil.Process]:
    wait_for(lambda: len(worker_processes(process.pid)) == 2, process)
    return worker_processes(process.pid)


def test_sigterm_while_workers_start(
    shapes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    process = start(*coco_words(shapes, tmp_path / "out", *SHARDS, *WORKERS), cwd=tmp_path)
    workers = wait_for_workers(process)
    # Beam's, in the folder of the command.
    assert len(list(temporary.glob("*/beam-pipeline-temp*"))) == 1
    process.terminate()
    check_interrupted(finish(process))
    check_gone(workers)
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    "finished", [30, *(pytest.param(each, marks=pytest.mark.slow) for each in (0, 1, 60))]
)
def test_a_killed_worker_ends_nothing(
    finished: int, shapes: Path, expected: Tree, tmp_path: Path
) -> None:
    """It may be killed while it starts, and when it has written some of the 100 shards."""
    output = tmp_path / "out"
    process = start(*coco_words(shapes, output, *SHARDS, *WORKERS), cwd=tmp_path)
    wait_for(lambda: bool(worker_processes(process.pid)), process)
    wait_for(lambda: len(list(output.glob(".staging/*/shards/*/done"))) >= finished, process)
    worker = worker_processes(process.pid)[0]
    worker.kill()
    result = finish(process)
    assert result.exit_code == 0
    assert f"process {worker.pid}, which wrote shards, has ended; its shard is " in result.stderr
    assert "Traceback" not in result.stderr
    assert read_dataset(output) == expected


@pytest.mark.parametrize(
    "kill",
    [
        pytest.param(True, id="kill"),
        pytest.param(False, id="stop as services do", marks=pytest.mark.slow),
    ],
)
def test_no_workers_are_left(kill: bool, shapes: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    process = start(*coco_words(shapes, output, *SHARDS, *WORKERS), cwd=tmp_path)
    wait_for_a_shard(process, output)
    workers = wait_for_workers(process)
    if kill:
        process.kill()
    else:
        for pid in (*(worker.pid for worker in workers), process.pid):
            os.kill(pid, signal.SIGTERM)
    # The workers' handles on its output are closed when they end.
    result = finish(process)
    check_gone(workers)
    if kill:
        assert result.exit_code == -signal.SIGKILL
    else:
        # A message about ended worker processes may come before.
        assert (result.exit_code, result.stdout) == (130, "")
        assert result.stderr.splitlines()[-1].startswith("shardbeam: error: interrupted; ")
