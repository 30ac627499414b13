"""A run that is killed at any moment, and started again, ends in the same bytes.

`SHARDBEAM_FAULTS=long` (`make faults`) goes through many more moments; `tests/test_soak.py` kills
processes, and does worse to them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from shardbeam.pipelines.commands.sample import write_shapes
from tests.support.crash_points import (
    LONG,
    each_moment,
    finished_shards,
    moments,
    record_states,
    restore,
)
from tests.support.dataset import (
    Tree,
    check_whole,
    coco_words,
    dataset_files,
    last_run,
    read_dataset,
    read_tree,
    run,
)

AGAIN = ("--if-changed", "--overwrite")
# So that two workers may share the work.
PARTS = 2

OLD_SETTINGS = (
    *("--fractions", "train=0.5,test=0.5"),
    *("--set", "output.num_shards={train: 2, test: 1}"),
    *("--set", "rejects.max_ratio=1"),
    *("--set", "labels.ids=contiguous"),
)

pytestmark = [pytest.mark.faults, pytest.mark.timeout(3600 if LONG else 300)]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six images, one of them a reject."""
    folder = tmp_path_factory.mktemp("tiny") / "shapes"
    write_shapes(output=folder, images=6, seed=0, width=64, height=64, workers=1)
    (folder / "images" / "000000000003.jpg").write_bytes(b"")
    return folder


def tiny_words(tiny: Path, output: Path, *more: str) -> list[str]:
    settings = ("--set", "output.num_shards=2", "--set", "rejects.max_ratio=1")
    return coco_words(tiny, output, *settings, *more)


@pytest.fixture(scope="module")
def expected(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Tree:
    output = tmp_path_factory.mktemp("expected") / "out"
    assert run(*tiny_words(tiny, output)).exit_code == 0
    return read_dataset(output)


# A kill at each moment of a first build


@pytest.fixture(scope="module")
def first_states(
    tiny: Path, expected: Tree, tmp_path_factory: pytest.TempPathFactory
) -> list[Tree]:
    """The states of an output while it is built for the first time."""
    output = tmp_path_factory.mktemp("first") / "out"
    with record_states(output) as states:
        assert run(*tiny_words(tiny, output)).exit_code == 0
    # A kill at the very first and at the very last moment, and each step between them.
    assert states[0] == {}
    assert dataset_files(states[-1]) == expected
    assert len(moments(states)) > 20
    return states


@pytest.mark.parametrize("part", range(PARTS))
@each_moment(quick=10, slow=3)
def test_a_build_killed_at_any_moment(
    every: int, part: int, first_states: list[Tree], tiny: Path, expected: Tree, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    for state in moments(first_states, every=every)[part::PARTS]:
        restore(output, state)
        committed = check_whole(state)
        assert run(*tiny_words(tiny, output, "--if-changed")).exit_code == 0
        assert read_dataset(output) == expected
        if not committed:
            assert last_run(output)["outcome"]["resumed"]["shards"] == finished_shards(state)


def test_a_build_killed_after_its_commit_is_done_when_it_is_started_again(
    tiny: Path, expected: Tree, tmp_path: Path
) -> None:
    output, latest = tmp_path / "out", tmp_path / "latest"
    words = tiny_words(tiny, output, "--set", f"output.latest={latest}")
    with record_states(output) as states:
        assert run(*words).exit_code == 0
    uncleared = [
        state
        for state in states
        if check_whole(state) and any(path.startswith(".staging/") for path in state)
    ]
    assert len(uncleared) > 2
    for state in uncleared[:: 1 if LONG else 6]:
        restore(output, state)
        latest.unlink()
        result = run(*words, exit_code=0)
        assert "an earlier run committed it and was killed before clearing up" in result.stdout
        assert read_dataset(output) == expected
        assert not (output / ".staging").exists()
        assert latest.read_text() == f"{output}\n"
    # Once it has cleared up, it is like any other dataset.
    assert run(*words).exit_code == 2


# A kill while another dataset is replaced


@pytest.fixture(scope="module")
def old(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """Another dataset of the same name and with a shard of the same name, and a user's file."""
    output = tmp_path_factory.mktemp("old") / "out"
    words = coco_words(tiny, output, *OLD_SETTINGS)
    assert run(*words).exit_code == 0
    (output / "notes.txt").write_text("mine")
    return read_tree(output)


@pytest.fixture(scope="module")
def replacing(
    tiny: Path, expected: Tree, old: Tree, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[Tree]]:
    """The states of an output while the old dataset is replaced."""
    output = tmp_path_factory.mktemp("replacing") / "out"
    restore(output, old)
    with record_states(output) as states:
        assert run(*tiny_words(tiny, output, *AGAIN)).exit_code == 0
    assert dataset_files(states[-1]) == {**expected, "notes.txt": b"mine"}
    return output, states


def test_a_dataset_is_whole_or_not_there_while_it_is_replaced(
    replacing: tuple[Path, list[Tree]], old: Tree
) -> None:
    _, states = replacing
    whole = [check_whole(state) for state in states]
    gone = whole.index(False)
    back = whole.index(True, gone)
    assert not any(whole[gone:back])
    assert all(whole[:gone])
    assert all(whole[back:])
    assert all(dataset_files(state) == dataset_files(old) for state in states[:gone])
    assert all(state["notes.txt"] == b"mine" for state in states)


@each_moment(quick=20, slow=5)
def test_a_replacement_killed_at_any_moment(
    every: int, replacing: tuple[Path, list[Tree]], tiny: Path, expected: Tree
) -> None:
    output, states = replacing
    for state in moments(states, every=every):
        restore(output, state)
        assert run(*tiny_words(tiny, output, *AGAIN)).exit_code == 0
        assert read_dataset(output) == {**expected, "notes.txt": b"mine"}


@each_moment(quick=40, slow=10)
def test_a_killed_replacement_taken_back(
    every: int, replacing: tuple[Path, list[Tree]], tiny: Path, old: Tree
) -> None:
    output, states = replacing
    for state in moments(states, every=every):
        restore(output, state)
        assert run(*coco_words(tiny, output, *OLD_SETTINGS, "--overwrite")).exit_code == 0
        # The replacement's finished shards stay for its own next run.
        assert dataset_files(read_tree(output)) == dataset_files(old)


# Another config after a kill


@each_moment(quick=60, slow=12)
def test_another_config_after_a_kill(
    every: int, tiny: Path, expected: Tree, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    words = tiny_words(tiny, output, "--overwrite")
    old_words = coco_words(tiny, output, *OLD_SETTINGS)
    with record_states(output) as states:
        assert run(*old_words).exit_code == 0
    old = dataset_files(states[-1])
    for state in moments(states, every=every):
        restore(output, state)
        assert run(*words).exit_code == 0
        assert dataset_files(read_tree(output)) == expected
        # The first run's finished shards are there for its next run, which removes them.
        assert finished_shards(read_tree(output)) == finished_shards(state)
        assert run(*old_words, "--overwrite").exit_code == 0
        assert read_dataset(output) == old

    # And killed itself, where the first had moved all its files into place.
    restore(output, next(state for state in states if "features.json" in state))
    with record_states(output) as states:
        assert run(*words).exit_code == 0
    for state in moments(states, every=every):
        check_whole(state)
        restore(output, state)
        assert run(*words).exit_code == 0
        assert dataset_files(read_tree(output)) == expected
