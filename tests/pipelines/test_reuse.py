"""Shards that did not change are copied from the previous version, with the same bytes."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import google_crc32c
import msgspec
import pytest
from PIL import Image
from pyarrow import parquet

import shardbeam.pipelines.versions
from shardbeam.transforms.containers.tfrecord import frame, read_records
from shardbeam.transforms.examples.encode.encode import library_versions
from shardbeam.transforms.images import decode as decode_module
from shardbeam.transforms.shards import dependencies
from shardbeam.transforms.shards.shard_records import decode_record, encode_record
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
    more = ("--name", "other", "--version", "2.0.0")
    assert build(mixed, tmp_path / "out", first, *more)["copied_shards"] == SHARDS
    found = read_dataset(tmp_path / "out")
    assert check_whole(found)
    # The same bytes in files of other names.
    for path, data in read_dataset(first).items():
        if "tfrecord-" in path:
            assert found[path.replace("coco-", "other-")] == data


# Something has changed


@contextlib.contextmanager
def editing(folder: Path) -> Iterator[Json]:
    """Yields the annotation file's content, and writes the changed content."""
    path = folder / "annotations" / "instances.json"
    document = json.loads(path.read_bytes())
    yield document
    path.write_text(json.dumps(document))


def image(folder: Path, number: int) -> Path:
    return folder / "images" / f"{number:012}.jpg"


def touch(folder: Path) -> str:
    os.utime(image(folder, 14))
    return "000000000014.jpg"


def repair_image(folder: Path) -> str:
    # The third is empty.
    empty = sorted((folder / "images").glob("0*.jpg"))[1]
    assert empty.stat().st_size == 0
    shutil.copy(image(folder, 10), empty)
    return empty.name


def add_image(folder: Path) -> str:
    shutil.copy(image(folder, 10), folder / "images" / "new.jpg")
    return "new.jpg"


def replace_image(folder: Path) -> str:
    shutil.copy(image(folder, 11), image(folder, 10))
    return "000000000010.jpg"


def spoil_image(folder: Path) -> str:
    image(folder, 13).write_bytes(b"no image")
    return "000000000013.jpg"


def remove_image(folder: Path) -> str:
    (folder / "images" / "unannotated.jpg").unlink()
    return "unannotated.jpg"


def move_box(folder: Path) -> str:
    with editing(folder) as document:
        found = document["annotations"][-1]
        found["bbox"][0] += 1.5
        (name,) = (
            each["file_name"] for each in document["images"] if each["id"] == found["image_id"]
        )
    return str(name)


def test_only_the_shards_that_change_are_written(
    changing: Path, tmp_path: Path, read_images: list[str]
) -> None:
    previous = tmp_path / "previous"
    assert run(*coco_words(changing, previous, *SETTINGS)).exit_code == 0
    for number, changes in enumerate(
        ((touch, repair_image, add_image, move_box), (replace_image, spoil_image, remove_image))
    ):
        changed = {change(changing) for change in changes}
        read_images.clear()
        output = tmp_path / str(number)
        reuse = build(changing, output, previous)
        # Each change is in a shard of its own.
        assert copied_and_damaged(reuse) == (SHARDS - len(changes), 0)
        # Each of these shards' images is read once, and no other one.
        new = set(records(output)) - set(records(previous))
        shards = {read_record(records(output)[name])["data"]["path"] for name in new}
        assert sorted(read_images) == sorted(keys_of(output, shards))
        assert changed <= keys_of(output, shards) | keys_of(previous, shards)
        listed = sum(read_record(data)["records"] for data in records(output).values())
        assert reuse["unread_images"] == listed - len(read_images)
        previous = output
    # Nothing old is left in the version that was copied again and again.
    assert read_dataset(previous) == fresh(changing, tmp_path)


def test_other_settings_copy_nothing(mixed: Path, first: Path, tmp_path: Path) -> None:
    words = coco_words(mixed, tmp_path / "out", *SETTINGS, "--set", "image.quality=90")
    result = run(*words, "--reuse", str(first), exit_code=0)
    assert "\nreused: 0 of " in result.stdout
    assert "no shard could be copied: the number of shards" in result.stdout


# Libraries, and what the images of a source show


def of_colour(folder: Path, name: str, number: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (24, 18), (9 * number % 255, 90, 120)).save(folder / name)


def changed_versions(monkeypatch: pytest.MonkeyPatch, **changes: str | None) -> None:
    """Makes it look as if other versions of libraries were installed; None for none."""
    versions = {
        name: version
        for name, version in {**library_versions(), **changes}.items()
        if version is not None
    }
    monkeypatch.setattr(dependencies, "library_versions", lambda: versions)


def folder_words(images: Path, output: Path, *more: str) -> tuple[str, ...]:
    words = ("build", "image-folder", "--images", str(images), "--output", str(output))
    return (*words, "--set", "output.num_shards=4", "--set", "rejects.max_ratio=1", *more)


@pytest.mark.parametrize(
    ("library", "copied"), [("libheif", 4), ("webp", 3), ("pillow", 3), ("simplejpeg", 0)]
)
def test_shards_without_images_of_a_library_are_copied(
    library: str,
    copied: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for number in range(40):
        of_colour(tmp_path / "in" / "cat", f"{number}.jpg", number)
    of_colour(tmp_path / "in" / "dog", "one.webp", 50)
    assert run(*folder_words(tmp_path / "in", tmp_path / "v1")).exit_code == 0
    changed_versions(monkeypatch, **{library: "0.1"})
    result = run(*folder_words(tmp_path / "in", tmp_path / "v2", "--reuse", f"{tmp_path}/v1"))
    assert f"reused: {copied} of 4 shards" in result.stdout
    named = [text for text in caplog.messages if f"{library} " in text and "(now 0.1)" in text]
    assert len(named) == (copied < 4)
    assert read_dataset(tmp_path / "v2") == read_dataset(tmp_path / "v1")


def test_a_heic_file_that_was_refused_is_tried_again_with_its_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(20):
        of_colour(tmp_path / "in" / "cat", f"{number}.jpg", number)
    (tmp_path / "in" / "cat" / "one.heic").write_bytes(b"\0\0\0\x18ftypheic" + bytes(400))
    words = folder_words(tmp_path / "in", tmp_path / "v1", "--set", "image.wrong_extension=keep")
    with pytest.MonkeyPatch.context() as without:
        without.setattr(decode_module, "import_heif", lambda: None)
        changed_versions(without, libheif=None)
        assert run(*words).exit_code == 0
    changed_versions(monkeypatch, libheif="1.99")
    result = run(
        *folder_words(tmp_path / "in", tmp_path / "v2", "--set", "image.wrong_extension=keep"),
        *("--reuse", f"{tmp_path}/v1"),
    )
    assert "reused: 3 of 4 shards" in result.stdout
    (message,) = [text for text in caplog.messages if "libheif none (now 1.99)" in text]
    assert "was written with other libraries" in message


def test_a_shard_is_written_again_if_its_source_no_longer_exchanges_sides(tmp_path: Path) -> None:
    images, annotations = [], []
    for number in range(40):
        of_colour(tmp_path / "images", f"{number:02}.jpg", number)
        size = {"width": 18, "height": 24} if number < 30 else {"width": 24, "height": 18}
        images.append({"id": number, "file_name": f"{number:02}.jpg", **size})
        box = {"bbox": [2, 2, 9, 9], "area": 81, "iscrowd": 0}
        annotations.append({"id": number + 1, "image_id": number, "category_id": 1, **box})
    document = {"images": images, "annotations": annotations}
    path = tmp_path / "annotations" / "instances.json"
    path.parent.mkdir()

    def build_it(output: str, *more: str) -> str:
        path.write_text(
            json.dumps({**document, "categories": [{"id": 1, "name": "a"}]}), encoding="utf-8"
        )
        settings = ("--set", "output.num_shards=10", "--set", "rejects.max_ratio=1")
        return run(*coco_words(tmp_path, tmp_path / output, *settings, *more), exit_code=0).stdout

    assert "size_corrected  30 images" in build_it("v1")
    assert "reused: 10 of 10" in build_it("v2", "--reuse", f"{tmp_path}/v1")
    # Ten of the first pictures have yet another size.
    for number in range(10):
        path_of = tmp_path / "images" / f"{number:02}.jpg"
        Image.new("RGB", (50, 50), (number, 9, 9)).save(path_of)
    stdout = build_it("v3", "--reuse", f"{tmp_path}/v1")
    assert "size_mismatch" in stdout
    fresh_words = coco_words(
        tmp_path,
        tmp_path / "fresh",
        *("--set", "output.num_shards=10", "--set", "rejects.max_ratio=1"),
    )
    assert run(*fresh_words).exit_code == 0
    assert read_dataset(tmp_path / "v3") == read_dataset(tmp_path / "fresh")


def test_a_shard_that_contradicts_its_index_is_written_again(
    mixed: Path, first: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The shard's record was changed with it, so that only the index shows it."""
    previous = Path(shutil.copytree(first, tmp_path / "previous"))
    name, data = next(
        (name, data)
        for name, data in records(previous).items()
        if read_record(data)["data"]["examples"] > 1
    )
    key = name.removesuffix(".json")
    record = read_record(data)
    shard = previous / record["data"]["path"]
    stored = list(read_records(io.BytesIO(shard.read_bytes())))
    changed = [*stored[:-1], stored[-1].replace(b"jpeg", b"jqeg")]
    assert changed != stored
    content = b""
    for each in changed:
        header, footer = frame(len(each), crc32c=google_crc32c.value(each))
        content += header + each + footer
    shard.write_bytes(content)
    result = decode_record(data, uri="", key=key, split=record["split"], records=record["records"])
    file = msgspec.structs.replace(result.data, crc32c=f"{google_crc32c.value(content):08x}")
    sealed = encode_record(msgspec.structs.replace(result, data=file))
    (previous / "runs" / ".shards" / name).write_bytes(sealed)
    reuse = build(mixed, tmp_path / "out", previous)
    assert copied_and_damaged(reuse) == (SHARDS - 1, 1)
    assert "contradicts its index: its index has the checksums of other Examples" in caplog.text
    assert read_dataset(tmp_path / "out") == read_dataset(first)


@contextlib.contextmanager
def unreadable(name: str) -> Iterator[None]:
    """Makes one image a file that the disk does not give."""
    with pytest.MonkeyPatch.context() as patch:
        before_each(patch, "read", fail_with(errno.EIO, where=name))
        yield


def test_what_could_not_be_read_is_tried_again(
    mixed: Path,
    first: Path,
    tmp_path: Path,
    read_images: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    output = tmp_path / "out"
    words = coco_words(mixed, output, *SETTINGS, "--if-changed", "--json")
    with unreadable("000000000010.jpg"), unreadable("000000000021.jpg"):
        assert run(*words).exit_code == 0
        # A reject that may pass is not copied.
        assert len(records(output)) == SHARDS - 2
        read_images.clear()
        # Both still cannot be read, and nothing else is.
        assert json.loads(run(*words).stdout)["current"]
        assert read_images == []
    with unreadable("000000000010.jpg"):
        result = run(*words)
        (message,) = caplog.messages
        assert "/000000000021.jpg: can be read now; the undamaged shards are kept" in message
        assert reuse_of(result)["copied_shards"] == SHARDS - 2
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


def test_what_is_damaged_is_written_again(
    mixed: Path, first: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    previous = Path(shutil.copytree(first, tmp_path / "previous"))
    shard = sorted(previous.glob("*.tfrecord-*"))[0]
    shard.write_bytes(shard.read_bytes()[:-1])
    output = tmp_path / "out"
    result = run(*coco_words(mixed, output, *SETTINGS, "--reuse", str(previous)), exit_code=0)
    assert f"\nreused: {SHARDS - 1} of {SHARDS} shards copied" in result.stdout
    assert "\nshards damaged or missing there, and written again: 1\n" in result.stdout
    (warning,) = caplog.messages
    assert warning == (
        f"{shard}: changed after the commit: another size or checksum; the shard is written again "
        "from its images"
    )
    assert last_run(output)["outcome"]["reuse"]["damaged_shards"] == 1
    assert read_dataset(output) == read_dataset(first)


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
    changed = replace_image(changing)
    read_images.clear()
    reuse = reuse_of(run(*words))
    assert (reuse["previous"], reuse["copied_shards"]) == (first, SHARDS - 1)
    assert changed in read_images
    assert latest.read_text().strip() != first


def test_records_are_those_of_the_shards_and_no_more(
    mixed: Path, first: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    shutil.copytree(first, output)
    words = coco_words(mixed, output, *SETTINGS, "--overwrite", "--reuse", str(output))
    assert run(*words, "--set", "output.num_shards=2").exit_code == 0
    assert len(records(output)) == 4
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
