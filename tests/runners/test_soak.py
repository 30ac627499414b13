"""Chains of builds under chaos on Prism and Flink, with their output on `gs://`.

`SHARDBEAM_FAULTS=long` plays 12 of each; `tests/soak.py` is about all others.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Iterator

import pytest

from tests.runners.flink import FlinkCluster, flink_cluster
from tests.runners.tools import find_tool
from tests.soak import Chain, Play, Runner, World, make_chain, open_world
from tests.support.crash_points import LONG

pytestmark = [
    pytest.mark.runners,
    pytest.mark.timing,
    pytest.mark.faults,
    pytest.mark.timeout(1200),
]

CHAINS = 12 if LONG else 2


@functools.cache
def chains() -> list[Chain]:
    """The first chains whose output is on `gs://`."""
    return list(itertools.islice(filter(_is_remote, map(make_chain, itertools.count())), CHAINS))


def _is_remote(chain: Chain) -> bool:
    return chain[0] == "gs"


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with open_world() as world:
        if world.gcs is None:
            pytest.skip("fake-gcs-server is not here")
        yield world


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlinkCluster]:
    with flink_cluster(tmp_path_factory.mktemp("flink")) as cluster:
        yield cluster


@pytest.mark.parametrize("number", range(CHAINS))
def test_prism(number: int, world: World) -> None:
    # Its workers are threads of the program, and go with it.
    flags = ("--runner=PrismRunner", f"--prism_location={find_tool('prism')}")
    check(Play(chains()[number], world=world, runner=Runner(flags, list, lambda: None)))


@pytest.mark.parametrize("number", range(CHAINS))
def test_flink(number: int, world: World, cluster: FlinkCluster) -> None:
    environment = {"STORAGE_EMULATOR_HOST": os.environ["STORAGE_EMULATOR_HOST"]}
    runner = Runner(
        cluster.portable_flags(environment=environment),
        lambda: cluster.python_workers()[:1],
        lambda: cluster.wait_for(cluster.is_idle),
    )
    check(Play(chains()[number], world=world, runner=runner))


def check(play: Play) -> None:
    play.play()
    print(*play.story, play.problem, sep="\n")
    assert not play.problem, play.story
