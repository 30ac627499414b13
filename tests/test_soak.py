"""A slice of the chaos, which must find known faults. `make soak` plays 500 chains."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.soak import ANSWERS, BLOWS, CHAINS, EVENTS, Chain, Play, World, make_chain, open_world

# Where the machine is slow, faults may come after the step that they are to disturb.
pytestmark = [pytest.mark.faults, pytest.mark.timing]

# {event: the seed of a chain with it}.
SLICE = {
    "a kill in the commit, on disk": 2,
    "a full disk": 180,
    "a worker is killed": 69,
    "another run while it stands still, on disk": 179,
    "another run takes over, on gs://": 431,
    "an image changes meanwhile, on gs://": 562,
}
QUICK = ("a kill in the commit, on disk", "an image changes meanwhile, on gs://")


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with open_world() as world:
        yield world


def play(chain: Chain, world: World, *, without: str = "") -> Play:
    if world.gcs is None and chain[0] == "gs":
        pytest.skip("fake-gcs-server is not here")
    played = Play(chain, world=world, without=without)
    played.play()
    return played


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(seed, id=event, marks=() if event in QUICK else pytest.mark.slow)
        for event, seed in SLICE.items()
    ],
)
def test_a_chain_ends_in_the_bytes_of_an_undisturbed_build(seed: int, world: World) -> None:
    kind, steps = make_chain(seed)
    played = play((kind, steps), world)
    assert not played.problem, played.story
    assert played.counts.keys() & {fault.what for step in steps for fault in step.faults}


@pytest.mark.parametrize(
    ("without", "seed"),
    [
        ("dataset_info.json last", 46),
        pytest.param("records in a shard's key", 49, marks=pytest.mark.slow),
    ],
)
def test_chaos_finds_what_a_mechanism_prevents(without: str, seed: int, world: World) -> None:
    """Whatever the threads do, the chain reports that the mechanism is taken away."""
    assert play(make_chain(seed), world, without=without).problem


def test_the_chains_hold_every_fault() -> None:
    chains = [make_chain(seed) for seed in range(CHAINS)]
    faults = {
        (kind, fault.what) for kind, steps in chains for step in steps for fault in step.faults
    }
    assert faults == {(kind, what) for kind in ANSWERS for what in (*BLOWS, *ANSWERS[kind])}


@pytest.mark.parametrize("kind", EVENTS)
def test_a_build_asks_as_often_as_the_chains_think(kind: str, world: World) -> None:
    """Else faults would come after its end, or never near it."""
    played = play((kind, []), world)
    assert not played.problem
    assert EVENTS[kind] * 0.9 <= played.events <= EVENTS[kind] * 1.2
