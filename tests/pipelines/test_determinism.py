"""The same input and config give the same bytes, on any runner and in any folder."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shardbeam.pipelines.cli.arguments import parse_arguments
from shardbeam.pipelines.cli.commands import BuildArguments
from shardbeam.pipelines.cli.run import run_build
from shardbeam.transforms.storage.base import StoredFile
from shardbeam.transforms.storage.local import LocalStorage
from tests.support.dataset import (
    MIXED_SETTINGS,
    Tree,
    check_whole,
    coco_words,
    last_run,
    read_dataset,
    run,
    write_mixed,
)
from tests.support.processes import worker_processes

SETTINGS = MIXED_SETTINGS


@pytest.fixture(scope="module")
def mixed(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample with something of everything: rejects of each kind, an excluded file, resizes."""
    return write_mixed(shapes, tmp_path_factory.mktemp("mixed"))


@pytest.fixture(scope="module")
def reference(mixed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("reference") / "out"
    assert run(*coco_words(mixed, output, *SETTINGS)).exit_code == 0
    return output


@pytest.fixture(scope="module")
def expected(reference: Path) -> Tree:
    return read_dataset(reference)


def test_the_reference_has_something_of_everything(expected: Tree) -> None:
    assert check_whole(expected)
    outcomes = [
        split["outcome"] for split in json.loads(expected["manifest.json"])["splits"].values()
    ]
    assert {reason for outcome in outcomes for reason in outcome["rejected"]} == {
        "missing_image",
        "truncated",
        "zero_byte",
        "duplicate_image_id",
    }
    assert sum(outcome["unannotated"] for outcome in outcomes) == 1
    assert {rule for outcome in outcomes for rule in outcome["excluded"]} == {"not_an_image_name"}
    assert all(outcome["shards"] == 5 for outcome in outcomes)


def test_a_run_again_elsewhere(
    mixed: Path, expected: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(mixed)
    output = tmp_path / "quite another" / "place"
    words = coco_words(Path(), output, *SETTINGS)
    assert run(*words, "--threads", "1").exit_code == 0
    assert read_dataset(output) == expected
    # And in place of what it has written.
    assert run(*words, "--overwrite", "--memory", "1").exit_code == 0
    assert read_dataset(output) == expected


def test_nothing_tells_where_the_output_was(reference: Path, expected: Tree) -> None:
    for path, data in expected.items():
        assert str(reference).encode() not in data, path
        assert b".staging" not in data, path


@pytest.mark.parametrize(
    "order",
    [
        lambda files: files[::-1],
        lambda files: random.Random(1).sample(files, len(files)),
    ],
    ids=["reversed", "shuffled"],
)
def test_the_listings_order_does_not_matter(
    order: Callable[[list[StoredFile]], list[StoredFile]],
    mixed: Path,
    expected: Tree,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    list_as_it_is = LocalStorage.list
    seen: list[str] = []

    def list_in_order(storage: LocalStorage, root: str) -> Iterator[StoredFile]:
        files = order(sorted(list_as_it_is(storage, root), key=lambda file: file.path))
        seen.extend(file.path for file in files if root == str(mixed / "images"))
        return iter(files)

    monkeypatch.setattr(LocalStorage, "list", list_in_order)
    assert run(*coco_words(mixed, tmp_path / "out", *SETTINGS)).exit_code == 0
    assert seen != sorted(seen)
    assert read_dataset(tmp_path / "out") == expected


def shuffle_document(document: dict[str, Any], *, seed: int) -> dict[str, Any]:
    """Shuffles images, categories and annotations, but not the annotations of one image.

    Their order is the objects' order in the Example.
    """
    rng = random.Random(seed)
    ranks = {image["id"]: rng.random() for image in document["images"]}
    return {
        "categories": rng.sample(document["categories"], len(document["categories"])),
        "annotations": sorted(document["annotations"], key=lambda entry: ranks[entry["image_id"]]),
        "images": rng.sample(document["images"], len(document["images"])),
    }


def test_the_annotations_order_does_not_matter(shapes: Path, tmp_path: Path) -> None:
    # Without duplicates: of these, the first wins. Nor does it matter where the input lies.
    document = json.loads((shapes / "annotations" / "instances.json").read_bytes())
    shuffled = tmp_path / "shuffled"
    (shuffled / "annotations").mkdir(parents=True)
    (shuffled / "images").symlink_to(shapes / "images")
    (shuffled / "annotations" / "instances.json").write_text(
        json.dumps(shuffle_document(document, seed=0))
    )
    for name, folder in (("one", shapes), ("other", shuffled)):
        assert run(*coco_words(folder, tmp_path / name, *SETTINGS)).exit_code == 0
    assert read_dataset(tmp_path / "other") == read_dataset(tmp_path / "one")


@pytest.mark.parametrize(
    "flags",
    [
        ("--direct_num_workers=2",),
        ("--processes=3", "--threads=1"),
    ],
    ids=["workers", "processes"],
)
def test_what_writes_does_not_matter(
    flags: tuple[str, ...], mixed: Path, expected: Tree, tmp_path: Path
) -> None:
    result = run(*coco_words(mixed, tmp_path / "out", *SETTINGS, *flags))
    assert (result.exit_code, "which wrote shards, has ended" in result.stderr) == (0, False)
    assert worker_processes() == []
    assert read_dataset(tmp_path / "out") == expected


def test_bundles_that_run_twice_do_not_matter(mixed: Path, expected: Tree, tmp_path: Path) -> None:
    arguments = parse_arguments(coco_words(mixed, tmp_path / "out", *SETTINGS))
    assert isinstance(arguments, BuildArguments)
    # The command refuses the flag.
    options = {"direct_runner_bundle_repeat": 2}
    assert run_build(msgspec.structs.replace(arguments, beam_options=options)) == 0
    assert read_dataset(tmp_path / "out") == expected
    # The second time each shard was there already, and it is this run that wrote it.
    assert last_run(tmp_path / "out")["outcome"]["resumed"]["shards"] == 0
