"""Chains of builds under seeded chaos; each has to end in the bytes of an undisturbed build.

`python -m tests.soak` plays 500 chains (`make soak`), `python -m tests.soak --seed 17` one of them,
and prints each of its steps.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import functools
import io
import json
import os
import random
import shutil
import signal
import struct
import sys
import tempfile
import threading
import time
import unittest.mock
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import google_crc32c
import numpy as np
import psutil
from PIL import Image

from shardbeam.pipelines.commands.sample import write_shapes
from shardbeam.transforms.examples.example_pb2 import Example
from shardbeam.transforms.staging.lease import LEASE_PATH
from tests.support.dataset import Tree, check_whole, coco_words, dataset_files, read_tree, run
from tests.support.gcs_proxy import FAULTS
from tests.support.gcs_server import ProxiedGcs, find_server, running_server
from tests.support.killable import Launch, Program, Timings, get_timings, set_timings
from tests.support.processes import worker_processes

CHAINS = 500
TIMINGS = Timings(timeout_s=1.5, deadline_s=60.0, part_bytes=1 << 18)
# The approximate number of requests of a build in each place, to choose when faults come.
EVENTS = {"disk": 285, "gs": 110}
# Events of a run besides faults of its storage. stop: the run pauses while another run goes
# from beginning to end; on gs:// its lease expires meanwhile. rival: another run starts beside it.
BLOWS = ("kill", "kill", "worker", "stop", "rival", "change")
ANSWERS = {"disk": ("ENOSPC", "EIO"), "gs": FAULTS}
PLANS = {
    "p": ("--set", "output.num_shards=2"),
    "q": (
        *("--fractions", "train=0.5,test=0.5", "--set", "labels.ids=contiguous"),
        *("--set", "output.num_shards={train: 2, test: 1}"),
    ),
}
# Possible changes of the input; image 1 is larger than a part of an upload.
VARIANTS = {
    "annotations/instances.json": "ab",
    "images/000000000001.jpg": "ab",
    # Not there, the second time.
    "images/000000000002.jpg": "a-b",
}
_TIMEOUT_S = 600.0
_OVERTAKEN = "stop, and the other run committed"

Edit = tuple[str, str]


class Fault(NamedTuple):
    """The fault of a run, the storage request at which it comes, and how often."""

    what: str
    moment: int
    times: int
    edit: Edit
    plan: str


class Step(NamedTuple):
    """A command, what was edited before it, and its faults."""

    plan: str
    flags: tuple[str, ...]
    edits: tuple[Edit, ...]
    faults: tuple[Fault, ...]


Chain = tuple[str, list[Step]]


def make_chain(seed: int) -> Chain:
    """Draws a place and a chain; one more build, which nothing disturbs, ends each."""
    rng = random.Random(seed)
    place = rng.choice(["disk", "gs"])

    def edit() -> Edit:
        path = rng.choice(list(VARIANTS))
        return path, rng.choice(VARIANTS[path])

    def fault() -> Fault:
        what = rng.choice(BLOWS if rng.random() < 0.5 else ANSWERS[place])
        times = 1 if what in BLOWS else rng.choice([1, 1, 2, 4, 1000 if what == "ENOSPC" else 8])
        return Fault(what, rng.randrange(EVENTS[place]), times, edit(), rng.choice("ppq"))

    def step() -> Step:
        faults = tuple(fault() for _ in range(rng.choice([1, 1, 2, 3])))
        flags = [flag for flag in ("--if-changed", "--reuse") if rng.random() < 0.5]
        if any(fault.what == "worker" for fault in faults):
            flags.append("--processes=2")
        edits = tuple(edit() for _ in range(rng.choice([0, 0, 1, 2])))
        return Step(rng.choice("ppq"), tuple(flags), edits, faults)

    return place, [step() for _ in range(rng.choice([1, 2, 2, 3, 4]))]


# The input, and what an undisturbed build makes of it


class World:
    """The variants of the input, the expected dataset of each, and the storage."""

    def __init__(self, folder: Path, gcs: ProxiedGcs | None) -> None:
        self.folder = folder
        self.gcs = gcs
        self._expected: dict[tuple[object, ...], Tree] = {}
        self.files: dict[Edit, bytes] = {}
        for seed, variant in enumerate("ab"):
            write_shapes(
                output=folder / variant, images=6, seed=seed, width=64, height=48, workers=1
            )
            _draw_noise(folder / variant, seed=seed)
            (folder / variant / "images" / "000000000003.jpg").write_bytes(b"")
            for path, data in read_tree(folder / variant).items():
                self.files[path, variant] = data

    def start_state(self) -> dict[str, str]:
        """Describes the input at the beginning of a chain: the variant of each file."""
        return {
            path: "a"
            for path, variant in self.files
            if variant == "a" and path.startswith(("images/", "annotations/instances."))
        }

    def expected(self, state: Mapping[str, str], plan: str) -> Tree:
        """Builds the dataset of a plan from an input that does not change."""
        key = (*sorted(state.items()), plan)
        if key not in self._expected:
            with tempfile.TemporaryDirectory(dir=self.folder) as name:
                disk = Disk(Path(name))
                for path, variant in state.items():
                    disk.write(f"in/{path}", self.files.get((path, variant)))
                run(*build_words(disk.root, plan), exit_code=0)
                tree = dataset_files(disk.read("out"))
            images = {
                path.removeprefix("images/"): self.files[path, variant]
                for path, variant in state.items()
                if path.startswith("images/") and (path, variant) in self.files
            }
            # A reject, in all variants.
            del images["000000000003.jpg"]
            assert read_images(tree) == images
            self._expected[key] = tree
        return self._expected[key]


def _draw_noise(folder: Path, *, seed: int) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (600, 800, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=95, subsampling=0)
    assert len(file.getvalue()) > 2 * TIMINGS.part_bytes
    (folder / "images" / "000000000001.jpg").write_bytes(file.getvalue())
    path = folder / "annotations" / "instances.json"
    document = json.loads(path.read_bytes())
    document["images"][0] |= {"width": 800, "height": 600}
    path.write_text(json.dumps(document))


@contextlib.contextmanager
def open_world() -> Iterator[World]:
    """Makes the input, and runs fake-gcs-server where there is one."""
    program = find_server()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="soak-"))
        gcs = None
        if program is not None:
            gcs = stack.enter_context(running_server(program))
            variable = {"STORAGE_EMULATOR_HOST": gcs.proxy.host}
            stack.enter_context(unittest.mock.patch.dict(os.environ, variable))
            stack.callback(set_timings, get_timings())
            set_timings(TIMINGS)
        yield World(Path(folder), gcs)


def build_words(root: str, plan: str, *flags: str) -> list[str]:
    """The command line of a build from ROOT/in to ROOT/out."""
    settings = ("--set", "rejects.max_ratio=1", *PLANS[plan])
    return coco_words(f"{root}/in", f"{root}/out", *settings, *flags)


# An independent reader


def read_images(tree: Tree) -> dict[str, bytes]:
    """Reads the stored images as TFDS does: by `dataset_info.json`, of the manifest nothing."""
    images: dict[str, bytes] = {}
    for split in json.loads(tree["dataset_info.json"])["splits"]:
        lengths = [int(length) for length in split["shardLengths"]]
        for number, length in enumerate(lengths):
            path = f"coco-{split['name']}.tfrecord-{number:05d}-of-{len(lengths):05d}"
            records = read_records(tree[path])
            assert len(records) == length, path
            for record in records:
                features = Example.FromString(record).features.feature
                (name,) = features["image/filename"].bytes_list.value
                assert name.decode() not in images, name
                (images[name.decode()],) = features["image/encoded"].bytes_list.value
    return images


def read_records(data: bytes) -> list[bytes]:
    """Reads the records of a TFRecord file, and compares both checksums of each."""
    records = []
    while data:
        (size,) = struct.unpack_from("<Q", data)
        record = data[12 : 12 + size]
        for start, part in ((8, data[:8]), (12 + size, record)):
            crc = google_crc32c.value(part)
            masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
            assert struct.unpack_from("<I", data, start) == (masked,), "a checksum is another"
        records.append(record)
        data = data[16 + size :]
    return records


# Places


class Disk:
    """A folder on disk."""

    def __init__(self, folder: Path) -> None:
        self.root = str(folder)

    def write(self, path: str, data: bytes | None) -> None:
        """Replaces a file, or deletes it."""
        file = Path(self.root, path)
        file.unlink(missing_ok=True)
        if data is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)

    def read(self, path: str) -> Tree:
        return read_tree(Path(self.root, path))

    def expire(self) -> None:
        """Lets the lease of a run that is no more expire; the kernel has freed it here."""

    def clear(self) -> None:
        shutil.rmtree(self.root)


class Bucket:
    """A bucket of fake-gcs-server."""

    def __init__(self, gcs: ProxiedGcs, name: str) -> None:
        self.gcs = gcs
        self.root = gcs.make_bucket(name)

    def write(self, path: str, data: bytes | None) -> None:
        uri = f"{self.root}/{path}"
        if data is not None:
            self.gcs.write(uri, data)
        elif path in self.gcs.names(self.root):
            self.gcs.delete(uri)

    def read(self, path: str) -> Tree:
        return self.gcs.read_tree(f"{self.root}/{path}")

    def expire(self) -> None:
        path = f"out/{LEASE_PATH}"
        if path in self.gcs.names(self.root):
            record = json.loads(self.gcs.read(f"{self.root}/{path}"))
            record["expires_at"] = "2000-01-01T00:00:00Z"
            self.gcs.write(f"{self.root}/{path}", json.dumps(record).encode())

    def clear(self) -> None:
        for name in self.gcs.names(self.root):
            self.gcs.delete(f"{self.root}/{name}")


class Runner(NamedTuple):
    """A runner elsewhere.

    Attributes:
        flags: What sends a build there.
        workers: Finds a process of its workers that may be killed.
        settle: Waits until no job is left there that goes on without its command.
    """

    flags: tuple[str, ...]
    workers: Callable[[], Sequence[psutil.Process]]
    settle: Callable[[], None]


# A chain


class Play:
    """One chain as it is played.

    Args:
        chain: The kind of place, and the steps.
        world: The input and the storage.
        without: A mechanism that the builds lack (`tests.support.killable.BREAKS`).
        runner: Where they run; in processes of this machine where None.

    Attributes:
        problem: What is wrong; empty where nothing is.
        counts: What was done and met.
        story: What has become of each step.
        events: How often the last build has asked its storage for something.
    """

    def __init__(
        self, chain: Chain, *, world: World, without: str = "", runner: Runner | None = None
    ) -> None:
        self.problem = ""
        self.counts: Counter[str] = Counter()
        self.story: list[str] = []
        self.events = 0
        self._world = world
        self._without = without
        self._runner = runner
        kind, self._steps = chain
        self._gcs = world.gcs if kind == "gs" else None
        self._folder = Path(tempfile.mkdtemp(dir=world.folder))
        self.place: Disk | Bucket = (
            Disk(self._folder / "disk")
            if self._gcs is None
            else Bucket(self._gcs, f"soak-{os.getpid()}-{self._folder.name.lower().strip('_')}")
        )
        self._state: dict[str, str] = {}
        # All that an image has ever been.
        self._history: dict[str, set[bytes]] = {}
        self._lock = threading.Lock()
        self._is_busy = False
        # Whether the dataset may have rejects that the same command would not make again.
        self._is_open = False
        self._rivals: list[Program] = []

    def play(self) -> None:
        """Plays the chain, and a last build that nothing disturbs."""
        try:
            for edit in self._world.start_state().items():
                self._edit(edit)
            for step in self._steps:
                self._play_step(step)
            self._play_step(Step("p", (), (), ()))
            self._check_end()
        except (AssertionError, KeyError, ValueError, struct.error) as error:
            self.problem = f"{type(error).__name__}: {error}"
        finally:
            self.place.clear()
            shutil.rmtree(self._folder)

    def _edit(self, edit: Edit) -> None:
        path, variant = edit
        if self._state.get(path) == variant:
            return
        self._state[path] = variant
        data = self._world.files.get(edit)
        self.place.write(f"in/{path}", data)
        if data is not None:
            self._history.setdefault(path.removeprefix("images/"), set()).add(data)

    def _play_step(self, step: Step) -> None:
        for edit in step.edits:
            self._edit(edit)
        self.place.expire()
        before = dataset_files(self.place.read("out"))
        if "--if-changed" not in step.flags:
            # Whatever was rejected is read again.
            self._is_open = False
        self._step, self.events, self._plans = step, 0, {step.plan}
        self._rivals.clear()
        met = Counter(self.counts)
        self._program = self._start(step.plan, *step.flags)
        if self._gcs is not None:
            self._gcs.proxy.meet = lambda request: self._meet(request.name)
        ends = [self._program.finish(self._meet, timeout_s=_TIMEOUT_S)]
        ends += [rival.finish(self._meet, timeout_s=_TIMEOUT_S) for rival in self._rivals]
        if self._runner is not None:
            self._runner.settle()
        if self._gcs is not None:
            self._gcs.proxy.reset()
        self.counts["builds"] += len(ends)
        found = {name: count for name, count in (self.counts - met).items() if name != "builds"}
        self.story.append(f"{step.plan} {' '.join(step.flags)} {step.edits}: {found} -> {ends}")
        self._check_step(ends, before=before, is_disturbed=bool(found))

    def _start(self, plan: str, *flags: str) -> Program:
        reuse = [f"--reuse={self.place.root}/out"] if "--reuse" in flags else []
        others = [flag for flag in flags if flag != "--reuse"]
        if self._runner is not None:
            others = [flag for flag in others if flag == "--if-changed"] + [*self._runner.flags]
        return Program(
            Launch(
                words=build_words(self.place.root, plan, "--overwrite", *others, *reuse),
                log=self._folder / "log",
                host="" if self._gcs is None else self._gcs.proxy.host,
                timings=TIMINGS,
                root=self.place.root if self._gcs is None else "",
                without=self._without,
                fresh=self._runner is not None,
            )
        )

    # Faults

    def _meet(self, where: str) -> str | None:
        """Returns the fault of a storage request, and applies other faults that are due."""
        with self._lock:
            if self._is_busy:
                return None
            count, self.events = self.events, self.events + 1
            due = [
                fault
                for fault in self._step.faults
                if fault.moment <= count < fault.moment + fault.times
            ]
            if not due:
                return None
            self._is_busy = True
        try:
            return self._befall(due[0], where=where)
        finally:
            self._is_busy = False

    def _befall(self, fault: Fault, *, where: str) -> str | None:
        process = self._program.process
        assert process.pid is not None
        if fault.what in BLOWS and not psutil.pid_exists(process.pid):
            # It has ended, and another build asks.
            return None
        self.counts[fault.what] += 1
        # Which of both is drawn by the same seed: whether the request is carried out all the same.
        is_late = fault.moment % 2 == 0
        if fault.what == "kill":
            self._program.kill()
            return "lost" if is_late else "closed"
        if fault.what == "worker":
            runner = self._runner
            for worker in runner.workers() if runner else worker_processes(process.pid):
                worker.kill()
            return None
        if fault.what == "change":
            self._edit(fault.edit)
            self._is_open = True
            return None
        if fault.what in ("rival", "stop"):
            self._plans.add(fault.plan)
            if fault.what == "rival":
                self._rivals.append(self._start(fault.plan))
                return None
            os.kill(process.pid, signal.SIGSTOP)
            self.place.expire()
            rival = self._start(fault.plan)
            end = rival.finish(lambda where: None, timeout_s=_TIMEOUT_S)
            self.counts[_OVERTAKEN] += end == 0
            os.kill(process.pid, signal.SIGCONT)
            return None if is_late or self._gcs is None else "closed"
        if "/in/images/" in where and fault.what == "EIO":
            self._is_open = True
        if fault.what == "ENOSPC" and not where.startswith(("write", "mkdir", "rename")):
            return None
        return fault.what

    # Conditions that must hold

    def _check_step(self, ends: list[int | None], *, before: Tree, is_disturbed: bool) -> None:
        log = (self._folder / "log").read_text()
        (self._folder / "log").unlink()
        assert None not in ends, f"a build hangs\n{log}"
        assert "Traceback" not in log, log
        assert {*ends} <= {0, 1, 2, 4, -signal.SIGKILL}, f"{ends}\n{log}"
        assert is_disturbed or ends == [0], f"{ends}, undisturbed\n{log}"
        tree = self.place.read("out")
        if not check_whole(tree):
            # One of two runs may have failed when the other had found its dataset.
            assert set(ends) != {0}, f"a build that ended with 0 left no dataset\n{log}"
            return
        for name, data in read_images(tree).items():
            assert data in self._history[name], f"{name} is what it never was"
        if self._is_open:
            return
        allowed = [self._world.expected(self._state, plan) for plan in sorted(self._plans)]
        if 0 not in ends:
            allowed.append(before)
        found = dataset_files(tree)
        assert any({path: found.get(path) for path in each} == each for each in allowed), (
            f"another dataset than that of an undisturbed build\n{log}"
        )

    def _check_end(self) -> None:
        tree = self.place.read("out")
        found, expected = dataset_files(tree), self._world.expected(self._state, "p")
        assert {path: found.get(path) for path in expected} == expected, "the end: other bytes"
        code, told, _ = run("verify", f"{self.place.root}/out")
        if strays := found.keys() - expected.keys():
            # A file that an overtaken run was writing: it does no harm, and stays.
            assert self.counts[_OVERTAKEN], f"the end: {strays} more"
            self.counts["chains that end with a file of an overtaken run"] += 1
            lines = [line for line in told.splitlines() if "left by another run" not in line]
            assert (code, len(lines)) == (5, 1), told
        else:
            assert code == 0, told
        staged = {path.split("/")[1] for path in tree if path.startswith(".staging/")}
        # Finished shards of another plan stay for its own next run.
        plans = {step.plan for step in self._steps}
        plans |= {fault.plan for step in self._steps for fault in step.faults}
        assert len(staged) < len(plans | {"p"}), f"staging is left: {staged}"


# The command


# The world of a process that plays many chains ends with it.
_stack = contextlib.ExitStack()


@functools.cache
def _world() -> World:
    return _stack.enter_context(open_world())


def play_seed(seed: int, without: str) -> tuple[Counter[str], str]:
    """Plays a chain; returns what was met, and what is wrong."""
    play = Play(make_chain(seed), world=_world(), without=without)
    play.play()
    return play.counts, play.problem and "\n".join([play.problem, *play.story])


def main() -> int:
    """Plays chains, and says what they have met and what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chains", type=int, default=CHAINS)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="play this one, and tell its steps")
    parser.add_argument("--without", default="", help="a mechanism that the builds lack")
    arguments = parser.parse_args()
    if find_server() is None:
        parser.error("half of the chains need fake-gcs-server: `make runner-tools` gets it")
    if arguments.seed is not None:
        print(*make_chain(arguments.seed)[1], sep="\n")
        with open_world() as world:
            play = Play(make_chain(arguments.seed), world=world, without=arguments.without)
            play.play()
        print(*play.story, play.problem or "nothing wrong", sep="\n")
        return 1 if play.problem else 0
    began = time.monotonic()
    counts: Counter[str] = Counter()
    failed = 0
    with (
        tempfile.TemporaryDirectory(prefix="soak-") as folder,
        concurrent.futures.ProcessPoolExecutor() as executor,
    ):
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        seeds = range(arguments.first, arguments.first + arguments.chains)
        without = [arguments.without] * len(seeds)
        played = executor.map(play_seed, seeds, without)
        for seed, (found, wrong) in zip(seeds, played, strict=True):
            print(f"seed {seed}: {dict(found)} {wrong or 'nothing wrong'}", flush=True)
            counts += found
            failed += bool(wrong)
    print(*(f"{count:6,} {name}" for name, count in sorted(counts.items())), sep="\n")
    print(f"{failed} of {len(seeds)} chains wrong, {time.monotonic() - began:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
