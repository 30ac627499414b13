"""Shards of an earlier version are copied, counted again, or written again from their images."""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest

from shardbeam.configs.decoding import MsgpackDecoder
from shardbeam.pipelines.cli.arguments import parse_arguments
from shardbeam.pipelines.cli.commands import BuildArguments
from shardbeam.pipelines.plan import make_plan
from shardbeam.transforms.core.labels import LabelMap
from shardbeam.transforms.core.resources import Resources
from shardbeam.transforms.dataset.shard_result import Origin, ShardResult
from shardbeam.transforms.examples.encode import encode
from shardbeam.transforms.shards import reuse
from shardbeam.transforms.shards.processes import WriterPool
from shardbeam.transforms.shards.shard_records import encode_record, record_path
from shardbeam.transforms.shards.writer import Shard, ShardSettings
from shardbeam.transforms.staging.staging import Staging
from shardbeam.transforms.storage.local import LocalStorage
from tests.support.dataset import Tree, coco_words, read_tree, run, write_mixed
from tests.support.example_builders import make_label_map
from tests.support.map_files import panoptic_words, write_maps, write_numbered_maps
from tests.support.old_versions import age_records, other_versions, replace_hashes, rewrite_index
from tests.support.stored import before_each

# The words of a build, and the shards that it writes.
Built = tuple[Sequence[str], Sequence[Shard]]
# Arguments of `age_records`.
Age = dict[str, Any]


def build(*words: str) -> Built:
    """Builds, and collects the shards."""
    shards = []
    begin = WriterPool.begin

    def note(pool: WriterPool, shard: Shard, **options: Any) -> object:  # noqa: ANN401
        shards.append(shard)
        return begin(pool, shard, **options)

    with mock.patch.object(WriterPool, "begin", note):
        run(*words, exit_code=0)
    assert shards
    return words, shards


@pytest.fixture(scope="module")
def builds(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Built]:
    """Builds of objects, and of maps of three kinds, whose shards can be made with any settings."""
    root = tmp_path_factory.mktemp("builds")
    mixed = coco_words(
        write_mixed(shapes, root / "mixed"),
        root / "objects",
        *("--set", "output.num_shards=4"),
        *("--set", "rejects.max_ratio=1"),
        *("--set", "unannotated=keep"),
        *("--set", "masks=png"),
    )
    maps = {
        "semantic": write_maps(root / "in-semantic"),
        "numbered": write_numbered_maps(root / "in-numbered"),
        "panoptic": panoptic_words(shapes),
    }
    return {
        "objects": build(*mixed),
        **{
            name: build("build", *words, "--output", str(root / name))
            for name, words in maps.items()
        },
    }


def make_settings(words: Sequence[str], output: Path, previous: Path | None) -> ShardSettings:
    """Makes the settings of shards that a build with these words has."""
    arguments = parse_arguments(tuple(words))
    assert isinstance(arguments, BuildArguments)
    plan = make_plan(arguments.config)
    return ShardSettings(
        splits=plan.dataset.splits,
        encoder=plan.encoder,
        staging=Staging(output=str(output), plan="plan", run_id=uuid.uuid4().hex),
        container=plan.dataset.container,
        resources=Resources(threads=1),
        previous="" if previous is None else str(previous),
    )


def make(
    built: Built, output: Path, *flags: str, previous: Path | None = None
) -> list[ShardResult]:
    """Makes the shards of a build, and leaves them and their records in `output`.

    Args:
        built: The build.
        output: The folder.
        flags: Settings to change.
        previous: Where unchanged shards are copied from.
    """
    words, shards = built
    settings = make_settings((*words, *flags), output, previous)
    with contextlib.closing(WriterPool(settings, workers=0)) as pool:
        results = [future.result() for future in [pool.begin(shard) for shard in shards]]
    for result in results:
        for file in (result.data, result.index):
            (output / file.path).parent.mkdir(exist_ok=True)
            shutil.copy(settings.staging.uri(result.staged, file.path), output / file.path)
        record = output / record_path(result.key)
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_bytes(encode_record(result))
    return results


def files(output: Path) -> Tree:
    """The files that `make` leaves."""
    return {
        path: data for path, data in read_tree(output).items() if not path.startswith(".staging/")
    }


def origins(results: Sequence[ShardResult]) -> list[Origin]:
    return [result.origin for result in results]


@pytest.fixture
def read_images(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths of the images whose content is asked for from now on."""
    paths: list[str] = []
    before_each(
        monkeypatch, "read", lambda uri: paths.append(uri) if uri.endswith(".jpg") else None
    )
    return paths


def test_other_settings_make_other_shards(
    builds: dict[str, Built], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, (shard, *_) = builds["objects"]

    def digest(*flags: str, label_map: LabelMap = shard.label_map) -> str:
        more = [word for flag in flags for word in ("--set", flag)]
        return make_settings((*words, *more), tmp_path, None).digest(label_map=label_map)

    digests = [
        digest(),
        digest("image.quality=90"),
        digest("image.verify=header"),
        digest("masks=none"),
        digest("features.rename={image/encoded: image_raw}"),
        digest("output.container=webdataset"),
        digest(label_map=make_label_map({"star": 1})),
    ]
    monkeypatch.setattr(encode, "ENCODING_VERSION", 1_000_000)
    assert len({*digests, digest()}) == len(digests) + 1


# A shard for each of them.
AGES: list[Age] = [
    {"other_hashes": True},
    {},
    {"lost_columns": ["crc32c", "classes"]},
    {"unknown": True, "lost_columns": (), "other_hashes": True},
]
LOST_MAPS: list[Age] = [{"lost_columns": ["map_classes"], "same_statistics": True}]


@pytest.mark.parametrize(
    ("name", "flags", "ages"),
    [
        *(
            ("objects", flags, AGES)
            for flags in (
                (),
                ("image.max_side=64", "image.encoding=png"),
                ("image.resize={width: 64, height: 64}", "image.encoding=png"),
                ("output.container=array_record",),
                ("image.verify=header",),
                # The counted keys hold other values.
                (
                    "masks=none",
                    "features.rename={image/encoded: image/caption, image/format: f}",
                    "features.constants={image/class/text: cat, image/object/mask: [a, b]}",
                ),
            )
        ),
        ("semantic", ("features.rename={image/segmentation/class/encoded: map}",), LOST_MAPS),
        # Their size is that of the image.
        ("semantic", ("features.drop=[image/width, image/height]",), LOST_MAPS),
        ("panoptic", ("features.drop=[image/segmentation/class/encoded]",), LOST_MAPS),
        ("numbered", ("features.drop=[image/segmentation/class/encoded]",), LOST_MAPS),
    ],
)
def test_what_another_version_has_counted_is_counted_again(
    name: str,
    flags: tuple[str, ...],
    ages: list[Age],
    builds: dict[str, Built],
    tmp_path: Path,
    read_images: list[str],
) -> None:
    if "output.container=array_record" in flags:
        pytest.importorskip("array_record")
    words = [word for flag in flags for word in ("--set", flag)]
    previous = tmp_path / "previous"
    made = make(builds[name], previous, *words)
    written = files(previous)
    for number, age in enumerate(ages):
        age_records(previous, records=slice(number, None, len(ages)), **age)
    read_images.clear()
    again = make(builds[name], tmp_path / "out", *words, previous=previous)
    assert origins(again) == [Origin.COPIED] * len(made)
    assert read_images == []
    # Its own records are those of this version, too.
    assert files(tmp_path / "out") == written


@pytest.mark.parametrize(
    ("name", "flag", "aged", "problem"),
    [
        (
            "objects",
            "features.drop=[image/object/area, image/height]",
            {},
            "features.drop leaves out image/height, image/object/area, which its objects need",
        ),
        ("objects", "seed=0", {"lost_columns": ["labels", "dhash"]}, "its index lacks dhash"),
        (
            "objects",
            "features.drop=[image/object/bbox/xmin]",
            {"lost_columns": [], "same_statistics": True},
            "features.drop leaves out image/object/bbox/xmin, which its labels need",
        ),
        (
            "objects",
            "example_per=annotation",
            {"lost_columns": [], "same_statistics": True},
            "each of its objects has an Example, which lacks the image's other labels",
        ),
        (
            "objects",
            "features.drop=[image/object/class/label]",
            {"lost_columns": ["classes"], "same_statistics": True},
            "features.drop leaves out image/object/class/label, which its labels need",
        ),
        (
            "objects",
            "features.drop=[image/encoded]",
            {"other_hashes": True},
            "features.drop leaves out image/encoded, which is measured",
        ),
        (
            "objects",
            "image.max_side=64",
            {"other_hashes": True},
            "some of its images were measured before they were converted to JPEG",
        ),
        *(
            (name, f"features.drop=[{dropped}]", LOST_MAPS[0], problem)
            for name, dropped, problem in (
                (
                    "semantic",
                    "image/encoded, image/width, image/height",
                    "its Examples lack a map, or its size",
                ),
                (
                    "semantic",
                    "image/segmentation/class/encoded",
                    "its Examples lack a map, or its size",
                ),
                # The map that is left holds no ids.
                (
                    "panoptic",
                    "image/panoptic/category_mask",
                    "its Examples lack a map, or its size",
                ),
            )
        ),
    ],
)
def test_what_cannot_be_counted_again_is_written_again(
    name: str,
    flag: str,
    aged: Age,
    problem: str,
    builds: dict[str, Built],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    previous = tmp_path / "previous"
    make(builds[name], previous, "--set", flag)
    written = files(previous)
    age_records(previous, **aged)
    again = make(builds[name], tmp_path / "out", "--set", flag, previous=previous)
    assert origins(again) == [Origin.WRITTEN] * len(again)
    (message,) = caplog.messages
    assert message.startswith("another version of Shardbeam counted ")
    assert message.endswith(f", and {problem}; the shard is written again from its images")
    assert files(tmp_path / "out") == written


def test_a_resumed_shard_that_another_version_has_counted_is_counted_again(
    builds: dict[str, Built], tmp_path: Path, read_images: list[str]
) -> None:
    made = make(builds["objects"], tmp_path)
    written = files(tmp_path)
    for path in tmp_path.glob(".staging/*/shards/*/done"):
        fields = MsgpackDecoder().decode(path.read_bytes())
        fields["collected"] = other_versions("rows", "labels", "measures", "objects", "statistics")
        folder = path.parent / fields["staged"].rpartition("/")[2]
        replace_hashes(folder, fields["index"]["path"])
        fields["index"] = rewrite_index(folder, fields["index"]["path"], lost=["crc32c"])
        path.write_bytes(msgspec.msgpack.encode(fields))
    read_images.clear()
    again = make(builds["objects"], tmp_path)
    assert [result.resumed for result in again] == [True] * len(made)
    assert read_images == []
    assert files(tmp_path) == written


# The earlier version is not what it was


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def swap_for_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("spoil", "which", "problem"),
    [
        (flip, "data", "changed after the commit: another size or checksum"),
        (swap_for_a_folder, "data", "is gone"),
        (Path.unlink, "index", "is gone"),
        (
            swap_for_a_folder,
            "record",
            "cannot be read: a folder; only regular files are read, so put a file in its place",
        ),
        # Each of them is written again, and the first is named.
        (None, "all", "is gone"),
        # It is replaced while it is copied.
        (os.utime, "meanwhile", "is gone"),
        # No record, no damage.
        (Path.unlink, "record", ""),
    ],
)
def test_what_is_damaged_is_written_again(
    spoil: Callable[[Path], object] | None,
    which: str,
    problem: str,
    builds: dict[str, Built],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    previous = tmp_path / "previous"
    first, *others = make(builds["objects"], previous)
    written = files(previous)
    data = previous / first.data.path
    paths = {"index": previous / first.index.path, "record": previous / record_path(first.key)}
    if spoil is None:
        for result in (first, *others):
            (previous / result.data.path).unlink()
    elif which == "meanwhile":
        stat = LocalStorage.stat

        def stat_and_touch(storage: LocalStorage, uri: str) -> object:
            stored = stat(storage, uri)
            if uri == str(data):
                os.utime(uri)
            return stored

        monkeypatch.setattr(LocalStorage, "stat", stat_and_touch)
    else:
        spoil(paths.get(which, data))
    again = origins(make(builds["objects"], tmp_path / "out", previous=previous))
    assert again[0] == (Origin.DAMAGED if problem else Origin.WRITTEN)
    assert again[1:] == [Origin.DAMAGED if which == "all" else Origin.COPIED] * len(others)
    assert len(caplog.messages) == bool(problem)
    for message in caplog.messages:
        assert message.startswith(str(previous))
        assert message.endswith(f"{problem}; the shard is written again from its images")
    assert files(tmp_path / "out") == written


def test_a_large_shard_is_copied_in_parts(
    builds: dict[str, Built], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reuse, "_PART_BYTES", 1000)
    previous = tmp_path / "previous"
    made = make(builds["objects"], previous)
    again = make(builds["objects"], tmp_path / "out", previous=previous)
    assert origins(again) == [Origin.COPIED] * len(made)
    assert files(tmp_path / "out") == files(previous)
