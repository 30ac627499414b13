"""`limit`: a sample of a dataset, in its own folder."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.builds import Build, build

LIMIT = 3


class Pair(NamedTuple):
    """A dataset, and a sample of it."""

    whole: Build
    sample: Build


def build_both(shapes: Path, folder: Path, *more: str) -> Pair:
    words: tuple[str | Path, ...] = (
        *("coco", "--images", shapes / "images", "--name", "shapes"),
        *("--annotations", shapes / "annotations" / "instances.json"),
        *("--fractions", "train=0.7,validation=0.3", "--set", "output.num_shards=7"),
        *("--set", f"output.latest={folder / 'latest'}", *more),
    )
    output = folder / "out"
    sample = build(*words, "--limit", str(LIMIT), output=output)
    assert (sample.exit_code, output.exists(), (folder / "latest").exists()) == (0, False, False)
    whole = build(*words, output=output)
    folder_of_sample = folder / f"out-limit-{LIMIT}"
    return Pair(whole, Build(folder_of_sample, 0, sample.summary, sample.stderr))


@pytest.fixture(scope="module", params=[(), ("--stratify",)], ids=["about", "stratified"])
def pair(
    shapes: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Pair:
    return build_both(shapes, tmp_path_factory.mktemp("limit"), *request.param)


@pytest.mark.parametrize("split", ["train", "validation"])
def test_a_sample_is_of_each_split(pair: Pair, split: str) -> None:
    """Each image where the whole dataset has it, with the same values."""
    whole, sample = pair.whole.by_key(split), pair.sample.by_key(split)
    assert len(sample) == LIMIT
    assert {key: example.features for key, example in sample.items()} == {
        key: whole[key].features for key in sample
    }
    # In the same order.
    assert list(sample) == [key for key in whole if key in sample]
    counts = pair.sample.counts(split)
    assert counts["listed"] == pair.whole.counts(split)["listed"] == len(whole)
    assert counts["excluded"] == {"beyond_limit": len(whole) - LIMIT}
    assert len(pair.sample.shards(split)) == 1


def test_every_class_is_in_the_sample(pair: Pair) -> None:
    for split in ("train", "validation"):
        classes = {label for each in pair.whole.examples(split) for label, _ in each.labels}
        assert classes == {
            label for each in pair.sample.examples(split) for label, _ in each.labels
        }
    assert pair.sample.manifest["labels"] == pair.whole.manifest["labels"]


def test_the_sample_says_that_it_is_one(pair: Pair) -> None:
    assert pair.sample.manifest["config"]["limit"] == LIMIT
    assert pair.whole.manifest["config"]["limit"] is None


def test_a_limit_that_is_not_reached_leaves_nothing_out(shapes: Path, tmp_path: Path) -> None:
    words = ("image-folder", "--images", shapes / "class_folders", "--limit", "100000")
    built = build(*words, output=tmp_path / "out")
    assert built.counts()["excluded"] == {}
    assert built.counts()["examples"] == built.counts()["listed"]


def test_groups_of_a_sample_are_of_no_size(shapes: Path, tmp_path: Path) -> None:
    built = build(
        *("image-folder", "--images", shapes / "class_folders", "--limit", "2", "--exact"),
        *("--fractions", "train=0.7,validation=0.3", "--group-by", r"([^/]+)\.[a-z]+$"),
        output=tmp_path / "out",
    )
    assert (built.exit_code, built.summary["warnings"]) == (0, [])
