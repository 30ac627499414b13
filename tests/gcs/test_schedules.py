"""Whole builds on `gs://` under seeded faults, SIGKILL among them, end in the same bytes.

`SHARDBEAM_FAULTS=long` (`make faults-storage`) runs 300 schedules.
"""

from __future__ import annotations

import dataclasses
import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardbeam.pipelines.sample import write_shapes
from shardbeam.transforms.dataset.object_lease import LEASE_PATH
from tests.support.dataset import Tree, check_whole, coco_words, dataset_files, read_dataset, run
from tests.support.gcs_killable import start_build
from tests.support.gcs_proxy import FAULTS, Fault, Request
from tests.support.gcs_server import ProxiedGcs
from tests.support.gcs_timings import Timings, get_timings, set_timings

LONG = os.environ.get("SHARDBEAM_FAULTS") == "long"
SCHEDULES = 300 if LONG else 12
TIMINGS = Timings(timeout_s=1.5, deadline_s=60.0, part_bytes=1 << 18)
SETTINGS = ("--set", "output.num_shards=2", "--set", "rejects.max_ratio=1")
OLD_SETTINGS = (
    *("--fractions", "train=0.5,test=0.5"),
    *("--set", "output.num_shards={train: 2, test: 1}"),
    *("--set", "rejects.max_ratio=1"),
)
# What a build asks for, and about how often.
PHASES = {"list": 6, "get": 70, "insert": 22, "upload": 6, "rewrite": 6, "delete": 13}
REQUESTS = 123

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]


@pytest.fixture(autouse=True)
def impatient(gcs: ProxiedGcs) -> Iterator[None]:
    before = get_timings()
    set_timings(TIMINGS)
    yield
    set_timings(before)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images large enough for shards of several parts, one of them a reject."""
    folder = tmp_path_factory.mktemp("photos") / "shapes"
    write_shapes(output=folder, images=20, seed=0, width=480, height=360, workers=1)
    (folder / "images" / "000000000003.jpg").write_bytes(b"")
    return folder


@pytest.fixture(scope="module")
def expected(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Tree:
    output = tmp_path_factory.mktemp("expected") / "out"
    assert run(*coco_words(photos, output, *SETTINGS)).exit_code == 0
    tree = read_dataset(output)
    shards = [data for path, data in tree.items() if path.startswith("coco-")]
    assert all(len(shard) > 2 * TIMINGS.part_bytes for shard in shards)
    return tree


@pytest.fixture(scope="module")
def old(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """Another dataset, to be replaced."""
    output = tmp_path_factory.mktemp("old") / "out"
    assert run(*coco_words(photos, output, *OLD_SETTINGS)).exit_code == 0
    return read_dataset(output)


@pytest.fixture(scope="module")
def source(gcs_server: ProxiedGcs, photos: Path) -> str:
    root = gcs_server.make_bucket(f"photos-{os.getpid()}")
    gcs_server.write_folder(f"{root}/in", photos)
    return f"{root}/in"


@dataclasses.dataclass(frozen=True)
class Rule:
    """Some requests of a kind in a row that meet a fault."""

    kind: str
    first: int
    times: int
    fault: Fault


class Schedule:
    """The faults of a run, and when the process is killed, if it is."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.replaces = rng.random() < 0.25
        self.rules = [
            Rule(
                kind=(kind := rng.choice(list(PHASES))),
                first=rng.randrange(PHASES[kind]),
                times=rng.choice([1, 1, 2, 4]),
                fault=rng.choice(FAULTS),
            )
            for _ in range(rng.choice([1, 2, 4]))
        ]
        # At which request, and whether that is still carried out.
        self.kills = [
            (rng.randrange(REQUESTS), rng.random() < 0.5) for _ in range(rng.choice([0, 0, 1, 2]))
        ]

    def __repr__(self) -> str:
        return f"replaces={self.replaces} rules={self.rules} kills={self.kills}"

    def decide(self, request: Request, seen: Counter[str]) -> Fault | None:
        count = seen[request.kind]
        for rule in self.rules:
            if rule.kind == request.kind and rule.first <= count < rule.first + rule.times:
                return rule.fault
        return None


def words(source: str, output: str, *more: str) -> list[str]:
    return coco_words(source, output, *SETTINGS, "--if-changed", *more)


def test_the_schedules_cover_every_fault_in_every_phase() -> None:
    schedules = [Schedule(seed) for seed in range(300)]
    rules = {(rule.kind, rule.fault) for schedule in schedules for rule in schedule.rules}
    assert rules == {(kind, fault) for kind in PHASES for fault in FAULTS}
    assert sum(bool(schedule.kills) for schedule in schedules) > 100
    assert sum(schedule.replaces for schedule in schedules) > 50


def test_a_build_has_as_many_requests_as_the_schedules_think(
    gcs: ProxiedGcs, bucket: str, source: str
) -> None:
    """Else faults and kills would come after its end."""
    assert run(*words(source, f"{bucket}/out")).exit_code == 0
    counts = gcs.proxy.counts()
    assert all(counts[kind] >= expected for kind, expected in PHASES.items()), counts
    assert counts.total() >= REQUESTS


@pytest.mark.parametrize("seed", range(SCHEDULES))
def test_a_build_under_faults(
    seed: int, gcs: ProxiedGcs, bucket: str, source: str, expected: Tree, old: Tree
) -> None:
    schedule = Schedule(seed)
    output = f"{bucket}/out"
    command = words(source, output, *(["--overwrite"] if schedule.replaces else []))
    if schedule.replaces:
        gcs.write_tree(output, old)
    for kill in schedule.kills:
        run_and_kill(command, schedule, kill=kill, gcs=gcs, output=output)
        check_whole(gcs.read_tree(output))
    seen: Counter[str] = Counter()

    def decide(request: Request) -> Fault | None:
        fault = schedule.decide(request, seen)
        seen[request.kind] += 1
        return fault

    gcs.proxy.decide = decide
    result = run(*command)
    gcs.proxy.reset()
    # Three lost uploads of one shard are enough to give up; what is left is to try again.
    if result.exit_code != 0:
        assert "run the same command again" in result.stderr, (schedule, result)
        assert run(*command).exit_code == 0, schedule
    tree = gcs.read_tree(output)
    assert check_whole(tree)
    assert dataset_files(tree) == expected, schedule
    # Nothing lies beside the dataset.
    assert {path.split("/")[0] for path in tree if path not in expected} == {"runs"}, schedule
    assert gcs.names(bucket) == [f"out/{path}" for path in tree]


def run_and_kill(
    command: list[str],
    schedule: Schedule,
    *,
    kill: tuple[int, bool],
    gcs: ProxiedGcs,
    output: str,
) -> None:
    seen: Counter[str] = Counter()
    at, is_carried_out = kill
    started = start_build(command, host=gcs.proxy.host, timings=TIMINGS)

    def decide(request: Request) -> Fault | None:
        count = seen.total()
        seen[request.kind] += 1
        if count == at:
            started.kill()
            return "lost" if is_carried_out else "closed"
        return "closed" if count > at else schedule.decide(request, seen)

    gcs.proxy.decide = decide
    started.join(60)
    assert started.exitcode is not None
    gcs.proxy.reset()
    # As if the lease of the killed run had ended.
    if LEASE_PATH in gcs.names(output):
        gcs.delete(f"{output}/{LEASE_PATH}")
