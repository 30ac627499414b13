"""Shards that did not change are copied from the previous version, with the same bytes."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyarrow import parquet

import shardbeam.pipelines.versions
from shardbeam.configs.decoding import MsgpackDecoder
from shardbeam.transforms.examples.encode import encode
from shardbeam.transforms.examples.encode.encode import library_versions
from shardbeam.transforms.shards import recount
from shardbeam.transforms.storage.local import LocalStorage
from tests.support.crash_points import LONG, each_moment, moments, record_states, restore
from tests.support.dataset import (
    Run,
    Tree,
    check_whole,
    coco_words,
    dataset_files,
    last_run,
    read_dataset,
    read_tree,
    run,
    run_records,
    write_mixed,
)
from tests.support.map_files import panoptic_words, write_maps, write_numbered_maps
from tests.support.old_versions import (
    age_records,
    other_versions,
    replace_hashes,
    rewrite_index,
)
from tests.support.stored import before_each, fail_with

SETTINGS = (
    *("--fractions", "train=0.7,validation=0.3"),
    *("--set", "output.num_shards=6"),
    *("--set", "rejects.max_ratio=1"),
    *("--set", "unannotated=keep"),
)
SHARDS = 12

Json = dict[str, Any]


@pytest.fixture(scope="module")
def mixed(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample with something of everything, to be read only."""
    return write_mixed(shapes, tmp_path_factory.mktemp("mixed"))


@pytest.fixture(scope="module")
def first(mixed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first version, to be read only."""
    output = tmp_path_factory.mktemp("first") / "out"
    assert run(*coco_words(mixed, output, *SETTINGS)).exit_code == 0
    return output


@pytest.fixture
def changing(mixed: Path, tmp_path: Path) -> Path:
    """The sample in a place of its own, to be changed."""
    return Path(shutil.copytree(mixed, tmp_path / "in"))


@pytest.fixture
def read_images(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the images whose content is asked for from now on."""
    names: list[str] = []

    def note(uri: str) -> None:
        if "/images/" in uri:
            names.append(uri.rpartition("/")[2])

    before_each(monkeypatch, "read", note)
    return names


@pytest.fixture
def previous(first: Path, tmp_path: Path) -> Path:
    """The first version in a place of its own, to be changed."""
    return Path(shutil.copytree(first, tmp_path / "previous"))


def reuse_of(result: Run) -> Json:
    assert result.exit_code == 0, result.stderr
    reuse: Json = json.loads(result.stdout)["reuse"]
    return reuse


def build(inputs: Path, output: Path, previous: Path, *more: str) -> Json:
    """Builds, and returns what was reused."""
    words = coco_words(inputs, output, *SETTINGS, *more, "--reuse", str(previous), "--json")
    return reuse_of(run(*words))


def copied_and_damaged(reuse: Json) -> tuple[int, int]:
    return reuse["copied_shards"], reuse["damaged_shards"]


def fresh(inputs: Path, folder: Path, *more: str) -> Tree:
    """The files of a build without a previous version."""
    assert run(*coco_words(inputs, folder / "fresh", *SETTINGS, *more)).exit_code == 0
    return read_dataset(folder / "fresh")


def records(output: Path) -> Tree:
    return read_tree(output / "runs" / ".shards")


def read_record(data: bytes) -> Json:
    record: Json = json.loads(data)["record"]
    return record


def keys_of(output: Path, shards: set[str]) -> set[str]:
    """The images in these shards, by the datasets' own indexes and rejects."""
    keys: set[str] = set()
    for data in records(output).values():
        record = read_record(data)
        if record["data"]["path"] in shards:
            table = parquet.read_table(output / record["index"]["path"])
            keys.update(table.column("key").to_pylist())
            keys.update(reject["key"] for reject in record["rejects"])
    return keys


# Nothing has changed


def test_everything_is_copied_and_no_image_read(
    mixed: Path, first: Path, tmp_path: Path, read_images: list[str]
) -> None:
    before = read_tree(first)
    output = tmp_path / "out"
    words = coco_words(mixed, output, *SETTINGS, "--reuse", str(first))
    result = run(*words, "--json")
    images = sum(read_record(data)["records"] for data in records(first).values())
    written = sum(read_record(data)["images"] for data in records(first).values())
    assert reuse_of(result) == {
        "previous": str(first),
        "copied_shards": SHARDS,
        "copied_images": written,
        "unread_images": images,
        "damaged_shards": 0,
    }
    # Rejects of copied shards are in the rejects files, and counted.
    assert images > written
    assert read_images == []
    assert read_dataset(output) == dataset_files(before)
    assert last_run(output)["outcome"]["reuse"] == json.loads(result.stdout)["reuse"]
    assert last_run(output)["outcome"]["resumed"]["shards"] == 0
    assert json.loads(result.stdout)["images_per_s"] == 0
    # The records for the next version are equal, and the previous version is unchanged.
    assert records(output) == records(first)
    assert len(records(output)) == SHARDS
    assert read_tree(first) == before


def test_a_dataset_of_another_name(mixed: Path, first: Path, tmp_path: Path) -> None:
    # The same bytes in files of other names.
    more = ("--name", "other", "--version", "2.0.0")
    assert build(mixed, tmp_path / "out", first, *more)["copied_shards"] == SHARDS
    assert read_dataset(tmp_path / "out") == fresh(mixed, tmp_path, *more)


# Something has changed


def touch(folder: Path) -> None:
    os.utime(folder / "images" / "000000000010.jpg")


def replace_image(folder: Path) -> None:
    shutil.copy(folder / "images" / "000000000011.jpg", folder / "images" / "000000000010.jpg")


def spoil_image(folder: Path) -> None:
    (folder / "images" / "000000000010.jpg").write_bytes(b"no image")


def repair_image(folder: Path) -> None:
    # The third is empty.
    empty = sorted((folder / "images").glob("0*.jpg"))[1]
    assert empty.stat().st_size == 0
    shutil.copy(folder / "images" / "000000000010.jpg", empty)


def add_image(folder: Path) -> None:
    shutil.copy(folder / "images" / "000000000010.jpg", folder / "images" / "new.jpg")


def remove_image(folder: Path) -> None:
    (folder / "images" / "unannotated.jpg").unlink()


@contextlib.contextmanager
def editing(folder: Path) -> Iterator[Json]:
    """Yields the annotation file's content, and writes the changed content."""
    path = folder / "annotations" / "instances.json"
    document = json.loads(path.read_bytes())
    yield document
    path.write_text(json.dumps(document))


def move_box(folder: Path) -> None:
    with editing(folder) as document:
        document["annotations"][-1]["bbox"][0] += 1.5


def test_only_the_shard_that_changes_is_written(
    changing: Path, tmp_path: Path, read_images: list[str]
) -> None:
    previous = tmp_path / "previous"
    assert run(*coco_words(changing, previous, *SETTINGS)).exit_code == 0
    changes = (touch, repair_image, add_image, replace_image, spoil_image, remove_image, move_box)
    for change in changes:
        change(changing)
        read_images.clear()
        output = tmp_path / change.__name__
        reuse = build(changing, output, previous)
        assert copied_and_damaged(reuse) == (SHARDS - 1, 0)
        # Each of that shard's images is read once, and no other one.
        new = set(records(output)) - set(records(previous))
        (shard,) = {read_record(records(output)[name])["data"]["path"] for name in new}
        assert sorted(read_images) == sorted(keys_of(output, {shard}))
        listed = sum(read_record(data)["records"] for data in records(output).values())
        assert reuse["unread_images"] == listed - len(read_images)
        previous = output
    # Nothing old is left in the version that was copied again and again.
    assert read_dataset(previous) == fresh(changing, tmp_path)


def change_encoding_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode, "ENCODING_VERSION", 1_000_000)


def change_a_codec(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = library_versions()
    monkeypatch.setattr(encode, "library_versions", lambda: {**versions, "pillow": "0"})


@pytest.mark.parametrize(
    "change",
    [
        ["--set", "image.quality=90"],
        ["--set", "output.num_shards=5"],
        ["--set", "labels.ids=contiguous"],
        ["--set", "masks=png"],
        change_encoding_version,
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in (
                ["--set", "image.verify=header"],
                ["--set", "seed=1"],
                ["--set", "labels.exclude=[star]"],
                ["--set", "features.rename={image/encoded: image_raw}"],
                change_a_codec,
            )
        ),
    ],
)
def test_other_settings_copy_nothing(
    change: list[str] | Callable[[pytest.MonkeyPatch], None],
    mixed: Path,
    first: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    more = []
    if isinstance(change, list):
        more = change
    else:
        change(monkeypatch)
    words = coco_words(mixed, tmp_path / "out", *SETTINGS, *more)
    result = run(*words, "--reuse", str(first), exit_code=0)
    assert "\nreused: 0 of " in result.stdout
    assert "no shard could be copied: the number of shards" in result.stdout


COUNTED_AGAIN = {
    "plain": [],
    "masks": ["--set", "masks=png"],
    "resized": ["--set", "image.max_side=64", "--set", "image.encoding=png"],
    "padded": ["--set", "image.resize={width: 64, height: 64}", "--set", "image.encoding=png"],
    "array_record": ["--set", "output.container=array_record"],
    "not decoded": ["--set", "image.verify=header"],
    # The counted keys hold other values.
    "renamed": [
        *("--set", "features.rename={image/encoded: image/caption, image/format: f}"),
        *("--set", "features.constants={image/class/text: cat, image/object/mask: [a, b]}"),
    ],
}


# Arguments of `age_records`.
Age = dict[str, Any]
AGES: list[Age] = [
    {"other_hashes": True},
    {},
    {"lost_columns": ["crc32c", "classes"]},
    {"unknown": True, "lost_columns": (), "other_hashes": True},
]


@pytest.mark.parametrize(
    ("name", "ages"),
    [
        ("plain", AGES),
        *(
            pytest.param(name, AGES, marks=pytest.mark.slow)
            for name in COUNTED_AGAIN
            if name != "plain"
        ),
    ],
)
def test_what_another_version_has_counted_is_counted_again(
    name: str, ages: list[Age], mixed: Path, tmp_path: Path, read_images: list[str]
) -> None:
    more, previous = COUNTED_AGAIN[name], tmp_path / "previous"
    written = fresh(mixed, tmp_path, *more)
    for age in ages:
        shutil.copytree(tmp_path / "fresh", previous)
        age_records(previous, **age)
        read_images.clear()
        found = build(mixed, tmp_path / "out", previous, *more)
        assert copied_and_damaged(found) == (SHARDS, 0)
        assert read_images == []
        assert read_dataset(tmp_path / "out") == written
        # Its own records are those of this version.
        assert records(tmp_path / "out") == records(tmp_path / "fresh")
        for folder in (previous, tmp_path / "out"):
            shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("more", "aged", "copied", "problem"),
    [
        (
            ["--set", "features.drop=[image/object/area, image/height]"],
            {},
            0,
            "features.drop leaves out image/height, image/object/area, which its objects need",
        ),
        ([], {"lost_columns": ["labels", "dhash"]}, 0, "its index lacks dhash"),
        (
            ["--set", "features.drop=[image/object/bbox/xmin]"],
            {"lost_columns": [], "same_statistics": True},
            0,
            "features.drop leaves out image/object/bbox/xmin, which its labels need",
        ),
        (
            ["--set", "example_per=annotation"],
            {"lost_columns": [], "same_statistics": True},
            0,
            "each of its objects has an Example, which lacks the image's other labels",
        ),
        (
            ["--set", "features.drop=[image/object/class/label]"],
            {"lost_columns": ["classes"], "same_statistics": True},
            0,
            "features.drop leaves out image/object/class/label, which its labels need",
        ),
        (
            ["--set", "features.drop=[image/encoded]"],
            {"other_hashes": True},
            0,
            "features.drop leaves out image/encoded, which is measured",
        ),
        (
            ["--set", "image.max_side=64"],
            {"other_hashes": True},
            1,
            "some of its images were measured before they were converted to JPEG",
        ),
    ],
)
def test_what_cannot_be_counted_again_is_written_again(
    more: list[str],
    aged: dict[str, Any],
    copied: int,
    problem: str,
    mixed: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    written = fresh(mixed, tmp_path, *more)
    previous = tmp_path / "fresh"
    age_records(previous, **aged)
    caplog.clear()
    assert copied_and_damaged(build(mixed, tmp_path / "out", previous, *more)) == (copied, 0)
    (message,) = caplog.messages
    assert message.startswith("another version of Shardbeam counted coco-")
    assert message.endswith(f", and {problem}; the shard is written again from its images")
    assert read_dataset(tmp_path / "out") == written


@pytest.mark.parametrize(
    ("maps", "setting", "copied"),
    [
        ("semantic", "rename={image/segmentation/class/encoded: map}", True),
        # Their size is that of the image.
        ("semantic", "drop=[image/width, image/height]", True),
        ("semantic", "drop=[image/encoded, image/width, image/height]", False),
        ("semantic", "drop=[image/segmentation/class/encoded]", False),
        ("panoptic", "drop=[image/segmentation/class/encoded]", True),
        # The map that is left holds no ids.
        ("panoptic", "drop=[image/panoptic/category_mask]", False),
        ("numbered", "drop=[image/segmentation/class/encoded]", True),
    ],
)
def test_classes_of_maps_are_read_again_from_the_maps(
    maps: str,
    setting: str,
    copied: bool,
    shapes: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    write = {"semantic": write_maps, "numbered": write_numbered_maps}
    source = write[maps](tmp_path / "in") if maps in write else panoptic_words(shapes)
    words = ("build", *source, "--set", f"features.{setting}", "--output")
    assert run(*words, str(tmp_path / "first")).exit_code == 0
    written = read_dataset(tmp_path / "first")
    age_records(tmp_path / "first", lost_columns=["map_classes"], same_statistics=True)
    caplog.clear()
    result = run(*words, str(tmp_path / "out"), "--reuse", str(tmp_path / "first"), "--json")
    assert bool(reuse_of(result)["copied_shards"]) == copied
    assert any("its Examples lack a map, or its size" in each for each in caplog.messages) != copied
    assert read_dataset(tmp_path / "out") == written


def test_a_resumed_shard_that_another_version_has_counted_is_counted_again(
    mixed: Path, first: Path, tmp_path: Path, read_images: list[str]
) -> None:
    output = tmp_path / "out"
    words = coco_words(mixed, output, *SETTINGS, "--json")
    assert run(*words, "--set", "expect.min_images=1000").exit_code == 3
    done = sorted(output.glob(".staging/*/shards/*/done"))
    assert len(done) == SHARDS
    for path in done:
        fields = MsgpackDecoder().decode(path.read_bytes())
        fields["collected"] = other_versions("rows", "labels", "measures", "objects", "statistics")
        folder = path.parent / fields["staged"].rpartition("/")[2]
        replace_hashes(folder, fields["index"]["path"])
        fields["index"] = rewrite_index(folder, fields["index"]["path"], lost=["crc32c"])
        path.write_bytes(msgspec.msgpack.encode(fields))
    read_images.clear()
    result = run(*words, exit_code=0)
    assert json.loads(result.stdout)["resumed"]["shards"] == SHARDS
    assert read_images == []
    assert read_dataset(output) == read_dataset(first)


@contextlib.contextmanager
def unreadable(name: str) -> Iterator[None]:
    """Makes one image a file that the disk does not give."""
    with pytest.MonkeyPatch.context() as patch:
        before_each(patch, "read", fail_with(errno.EIO, where=name))
        yield


def test_a_reject_that_may_pass_is_not_copied(mixed: Path, first: Path, tmp_path: Path) -> None:
    with unreadable("000000000010.jpg"):
        previous = tmp_path / "previous"
        assert run(*coco_words(mixed, previous, *SETTINGS)).exit_code == 0
    assert "image_unreadable" in json.dumps(last_run(previous))
    assert len(records(previous)) == SHARDS - 1
    assert copied_and_damaged(build(mixed, tmp_path / "out", previous)) == (SHARDS - 1, 0)
    assert read_dataset(tmp_path / "out") == read_dataset(first)


def test_what_could_not_be_read_is_tried_again(
    mixed: Path,
    first: Path,
    tmp_path: Path,
    read_images: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    output = tmp_path / "out"
    words = coco_words(mixed, output, *SETTINGS, "--if-changed", "--json")
    with unreadable("000000000010.jpg"), unreadable("000000000020.jpg"):
        assert run(*words).exit_code == 0
        read_images.clear()
        # Both still cannot be read, and nothing else is.
        assert json.loads(run(*words).stdout)["current"]
        assert read_images == []
    with unreadable("000000000010.jpg"):
        result = run(*words)
        (message,) = caplog.messages
        assert "/000000000020.jpg: can be read now; the undamaged shards are kept" in message
        assert reuse_of(result)["copied_shards"] >= SHARDS - 2
        assert json.loads(run(*words).stdout)["current"]
    assert run(*words).exit_code == 0
    assert read_dataset(output) == read_dataset(first)
    assert json.loads(run(*words).stdout)["current"]
    assert len(run_records(output)) == 3


def test_what_readers_are_led_to_is_not_built_anew_for_an_image(
    mixed: Path, tmp_path: Path
) -> None:
    words = coco_words(mixed, tmp_path / "{fingerprint}", *SETTINGS, "--if-changed")
    words += ["--set", f"output.latest={tmp_path}/latest"]
    with unreadable("000000000010.jpg"):
        assert run(*words).exit_code == 0
        assert run(*words).exit_code == 0
    result = run(*words, exit_code=2)
    assert (
        f"000000000010.jpg: can be read now: {tmp_path}/latest leads readers here" in result.stderr
    )


def test_what_an_older_version_lacks_is_nothing_that_a_newer_one_lacks(
    mixed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = coco_words(mixed, tmp_path / "{date}", *SETTINGS, "--if-changed", "--json")
    words += ["--set", f"output.latest={tmp_path}/latest"]
    monkeypatch.setattr(shardbeam.pipelines.versions, "run_date", lambda _: "20250131")
    with unreadable("000000000010.jpg"):
        assert run(*words).exit_code == 0
    pointer = (tmp_path / "latest").read_text()
    monkeypatch.setattr(shardbeam.pipelines.versions, "run_date", lambda _: "20250201")
    assert run(*words).exit_code == 0
    # As if the newer one's run had been killed before it set the pointer.
    (tmp_path / "latest").write_text(pointer)
    assert json.loads(run(*words).stdout)["current"]
    assert (tmp_path / "latest").read_text() == f"{tmp_path}/20250201\n"


# The previous version is not what it was


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def first_shard(folder: Path) -> Path:
    return sorted(folder.glob("*.tfrecord-*"))[0]


def first_index(folder: Path) -> Path:
    return sorted(folder.glob("index/*"))[0]


def record_of_first(folder: Path) -> Path:
    name = first_shard(folder).name
    (path,) = (
        path
        for path in (folder / "runs" / ".shards").iterdir()
        if read_record(path.read_bytes())["data"]["path"] == name
    )
    return path


def swap_for_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


ANOTHER = "another size or checksum"
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "flipped": (lambda folder: flip(first_shard(folder)), ANOTHER),
    "a folder": (lambda folder: swap_for_a_folder(first_shard(folder)), "is gone"),
    "index gone": (lambda folder: first_index(folder).unlink(), "is gone"),
    "record a folder": (
        lambda folder: swap_for_a_folder(record_of_first(folder)),
        "cannot be read: a folder; only regular files are read",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_damaged_is_written_anew(
    damage: str,
    mixed: Path,
    first: Path,
    previous: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    spoil, problem = DAMAGES[damage]
    spoil(previous)
    output = tmp_path / "out"
    result = run(*coco_words(mixed, output, *SETTINGS, "--reuse", str(previous)), exit_code=0)
    assert f"\nreused: {SHARDS - 1} of {SHARDS} shards copied" in result.stdout
    assert "\nshards damaged or missing there, and written again: 1\n" in result.stdout
    (warning,) = caplog.messages
    assert str(previous) in warning
    assert problem in warning
    assert warning.endswith("the shard is written again from its images")
    assert last_run(output)["outcome"]["reuse"]["damaged_shards"] == 1
    assert read_dataset(output) == read_dataset(first)


def test_all_damaged_is_one_warning(
    mixed: Path, first: Path, previous: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for path in previous.glob("*.tfrecord-*"):
        path.unlink()
    assert copied_and_damaged(build(mixed, tmp_path / "out", previous)) == (0, SHARDS)
    assert len(caplog.messages) == 1
    assert read_dataset(tmp_path / "out") == read_dataset(first)


def test_a_record_that_is_gone_is_no_damage(
    mixed: Path, first: Path, previous: Path, tmp_path: Path
) -> None:
    record_of_first(previous).unlink()
    assert copied_and_damaged(build(mixed, tmp_path / "out", previous)) == (SHARDS - 1, 0)
    assert read_dataset(tmp_path / "out") == read_dataset(first)


def test_a_large_shard_is_copied_in_parts(
    mixed: Path, first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recount, "_PART_BYTES", 1000)
    assert build(mixed, tmp_path / "out", first)["copied_shards"] == SHARDS
    assert read_dataset(tmp_path / "out") == read_dataset(first)


def test_a_shard_that_is_replaced_while_it_is_copied(
    mixed: Path,
    first: Path,
    previous: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replaced = str(first_shard(previous))
    stat = LocalStorage.stat

    def stat_and_touch(storage: LocalStorage, uri: str) -> object:
        stored = stat(storage, uri)
        if uri == replaced:
            os.utime(uri)
        return stored

    monkeypatch.setattr(LocalStorage, "stat", stat_and_touch)
    assert build(mixed, tmp_path / "out", previous)["damaged_shards"] == 1
    assert read_dataset(tmp_path / "out") == read_dataset(first)


# Folders that --reuse may name


def test_a_dataset_of_another_version_of_the_program(
    mixed: Path, first: Path, tmp_path: Path
) -> None:
    previous = tmp_path / "previous"
    previous.mkdir()
    for name in ("dataset_info.json", "manifest.json"):
        (previous / name).write_text('{"format": "of the future"}')
    assert build(mixed, tmp_path / "out", previous)["copied_shards"] == 0
    assert read_dataset(tmp_path / "out") == read_dataset(first)


# The output itself


def test_the_first_run_of_a_schedule(
    mixed: Path,
    first: Path,
    tmp_path: Path,
    read_images: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    output = tmp_path / "out"
    words = coco_words(mixed, output, *SETTINGS, "--overwrite", "--reuse", f"{output}/")
    result = run(*words, "--json")
    assert caplog.messages == [
        f"--reuse: no committed dataset in {output} yet; all shards are written"
    ]
    assert reuse_of(result) is None
    assert read_dataset(output) == dataset_files(read_tree(first))
    read_images.clear()
    assert reuse_of(run(*words, "--json"))["copied_shards"] == SHARDS
    assert read_images == []
    assert read_dataset(output) == dataset_files(read_tree(first))
    # With nothing to do, there is nothing to say about reuse.
    result = run(*words, "--if-changed", "--json")
    assert json.loads(result.stdout)["current"]
    assert reuse_of(result) is None


def test_a_schedule_that_makes_versions(
    changing: Path, tmp_path: Path, read_images: list[str]
) -> None:
    latest = tmp_path / "latest"
    words = coco_words(
        changing,
        tmp_path / "versions" / "{fingerprint}",
        *SETTINGS,
        *("--set", f"output.latest={latest}", "--if-changed"),
        *("--reuse", str(latest), "--json"),
    )
    assert reuse_of(run(*words)) is None
    first = latest.read_text().strip()
    replace_image(changing)
    read_images.clear()
    reuse = reuse_of(run(*words))
    assert (reuse["previous"], reuse["copied_shards"]) == (first, SHARDS - 1)
    assert "000000000010.jpg" in read_images
    second = Path(latest.read_text().strip())
    assert second != Path(first)
    assert read_dataset(second) == fresh(changing, tmp_path)


def test_records_are_those_of_the_shards_and_no_more(
    mixed: Path, first: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    shutil.copytree(first, output)
    words = coco_words(mixed, output, *SETTINGS, "--overwrite", "--reuse", str(output))
    for count in (3, 2):
        assert run(*words, "--set", f"output.num_shards={count}").exit_code == 0
        assert len(records(output)) == 2 * count
    assert records(output).keys().isdisjoint(records(first))
    assert run(*words).exit_code == 0
    assert records(output) == records(first)
    assert read_dataset(output) == read_dataset(first)


@each_moment(quick=24, slow=8)
def test_a_dataset_replaced_by_its_own_next_version_killed_at_any_moment(
    every: int, changing: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    settings = ("--set", "output.num_shards=3", "--set", "rejects.max_ratio=1")
    words = coco_words(changing, output, *settings, "--overwrite", "--reuse", str(output))
    assert run(*words).exit_code == 0
    old = read_tree(output)
    replace_image(changing)
    assert run(*words, "--set", f"output.path={tmp_path}/other").exit_code == 0
    expected = read_dataset(tmp_path / "other")
    with record_states(output) as states:
        result = run(*words, "--json")
    assert reuse_of(result)["copied_shards"] == 2
    assert read_dataset(output) == expected
    kept = records(output)
    for state in moments(states, every=every):
        restore(output, state)
        if check_whole(state):
            assert dataset_files(state) in (dataset_files(old), expected)
        assert run(*words).exit_code == 0
        assert read_dataset(output) == expected
        assert records(output) == kept


def test_a_build_that_copies_killed_at_any_moment(mixed: Path, first: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    words = coco_words(mixed, output, *SETTINGS, "--overwrite", "--reuse", str(first), "--json")
    with record_states(output) as states:
        assert run(*words).exit_code == 0
    rng = random.Random(1)
    for state in rng.sample(states, 50 if LONG else 2):
        check_whole(state)
        restore(output, state)
        # Copied by the run that was killed, or by this one.
        assert reuse_of(run(*words))["copied_shards"] == SHARDS
        assert read_dataset(output) == read_dataset(first)
        assert records(output) == records(first)
    # Gone on with by a run that copies nothing, and has nothing to write.
    copied = [state for state in states if sum(path.endswith("/done") for path in state) == SHARDS]
    restore(output, copied[0])
    words = coco_words(mixed, output, *SETTINGS, "--overwrite", "--json")
    summary = json.loads(run(*words).stdout)
    assert (summary["resumed"]["shards"], summary["images_per_s"]) == (SHARDS, 0)
    assert read_dataset(output) == read_dataset(first)
