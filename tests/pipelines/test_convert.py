"""`shardbeam convert`: every Example comes to the same place with the same bytes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from pyarrow import parquet

from shardbeam.transforms.containers.base import find_container
from shardbeam.transforms.storage.local import LocalStorage
from tests.support.builds import Build, build, build_config
from tests.support.dataset import coco_words, read_tree, run
from tests.support.format_samples import SAMPLES, FormatSample, SharedData

# Maps of segments cannot be read back, and tables have no images.
NOT_CONVERTED = {"coco-panoptic"}
QUICK = {"coco-masks", "voc-maps", "yolo-pose", "cifar100"}


def convert(source: Path, output: Path, *more: str, container: str = "tfrecord") -> Build:
    result = run(
        *("convert", str(source), "--container", container, "--output", str(output), "--json"),
        *more,
    )
    summary = json.loads(result.stdout) if result.stdout else {}
    return Build(output, result.exit_code, summary, result.stderr)


def check_same(before: Build, after: Build) -> None:
    assert after.exit_code == 0, after.stderr
    # Files in no split have an entry without a name.
    for split in filter(None, before.manifest["splits"]):
        assert after.shards(split) == before.shards(split)
        for name in before.shards(split):
            assert (after.output / name).read_bytes() == (before.output / name).read_bytes()
    same = ("dataset_info.json", "features.json", "label_map.pbtxt", "labels.txt")
    for name in same:
        assert read_tree(after.output).get(name) == read_tree(before.output).get(name)
    for key in ("labels", "skeletons", "features"):
        assert after.manifest.get(key) == before.manifest.get(key)
    indexes = sorted(path.name for path in (before.output / "index").iterdir())
    assert indexes
    for name in indexes:
        # The digest of labels rounds boxes, and an Example's 32 bits may round to the other side.
        old, new = (
            parquet.read_table(each.output / "index" / name).drop_columns(["labels"])
            for each in (before, after)
        )
        assert new.equals(old)


@pytest.mark.parametrize(
    "sample",
    [
        pytest.param(each, marks=() if each.name in QUICK else pytest.mark.slow, id=each.name)
        for each in SAMPLES
        if each.name not in NOT_CONVERTED
    ],
)
def test_the_shards_of_every_format_come_out_the_same(
    sample: FormatSample, tmp_path: Path, find_shared_data: SharedData
) -> None:
    data = sample.place(tmp_path / "data", shared_data=find_shared_data)
    before = build(*sample.command(data), "--set", "output.num_shards=2", output=tmp_path / "out")
    assert before.exit_code == 0, before.stderr
    check_same(before, convert(before.output, tmp_path / "again"))


@pytest.fixture(scope="module")
def mixed(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Two sources with the same keys, exact splits, renamed and constant keys, a turned image."""
    folder = tmp_path_factory.mktemp("mixed")
    source = {
        "format": "coco",
        "images": str(shapes / "images"),
        "annotations": [str(shapes / "annotations" / "instances.json")],
    }
    built = build_config(
        {
            "name": "mixed",
            "seed": 5,
            "source": [source, source],
            "fractions": {"train": 0.6, "holdout": 0.4},
            "exact": True,
            "masks": "png",
            "labels": {"merge": {"round": ["circle"]}, "exclude": ["star"], "first_id": 0}
            | {"ids": "contiguous"},
            "features": {
                "rename": {"image/encoded": "picture", "image/object/bbox/xmin": "left"},
                "drop": ["image/object/class/text", "image/filename"],
                "constants": {"who": "me", "numbers": [1, 2]},
                "add": ["image/depth"],
            },
            "output": {"num_shards": {"train": 4, "holdout": 2}},
            "duplicates": {"find": "none"},
        },
        folder=folder,
    )
    assert built.exit_code == 0, built.stderr
    return built


def test_settings_do_not_matter(mixed: Build, tmp_path: Path) -> None:
    converted = convert(mixed.output, tmp_path / "again")
    check_same(mixed, converted)
    # A converted dataset can be converted.
    check_same(mixed, convert(converted.output, tmp_path / "once more"))


def test_an_example_of_each_object(shapes: Path, tmp_path: Path) -> None:
    settings = ("--set", "example_per=annotation", "--set", "masks=png")
    more = ("--set", "features.rename={annotation/bbox: bbox}", "--set", "output.num_shards=3")
    words = coco_words(shapes, tmp_path / "out", *settings, *more)
    assert run(*words).exit_code == 0
    before = Build(tmp_path / "out", 0, {}, "")
    check_same(before, convert(before.output, tmp_path / "again"))


def test_array_record_holds_the_same_examples(mixed: Build, tmp_path: Path) -> None:
    pytest.importorskip("array_record")
    converted = convert(mixed.output, tmp_path / "again", container="array_record")
    assert converted.exit_code == 0, converted.stderr
    for split in mixed.manifest["splits"]:
        for old, new in zip(mixed.shards(split), converted.shards(split), strict=True):
            records = [
                [
                    record
                    for _, record in find_container(kind).read(
                        LocalStorage().find(str(built.output / name))
                    )
                ]
                for built, name, kind in (
                    (mixed, old, "tfrecord"),
                    (converted, new, "array_record"),
                )
            ]
            assert records[0] == records[1]
    assert run("verify", str(converted.output)).exit_code == 0
    again = convert(converted.output, tmp_path / "back")
    assert again.exit_code == 1
    assert "only TFRecord files can be converted" in again.stderr


def test_an_image_that_is_stored_turned_stays_so(tmp_path: Path, shared_data: Path) -> None:
    words = ("--images", shared_data / "imaging-exif", "--set", "image.orientation=keep")
    before = build(
        *("image-folder", *words, "--set", "rejects.max_ratio=1"), output=tmp_path / "out"
    )
    if before.exit_code:
        pytest.skip("no class folders in this sample")
    check_same(before, convert(before.output, tmp_path / "again"))


def test_what_cannot_be_converted(mixed: Build, tmp_path: Path) -> None:
    folder = str(tmp_path / "out")
    words = ("convert", str(mixed.output))
    assert run(*words, "--output", folder).stderr == (
        "shardbeam: error: convert: missing --container\n"
    )
    unknown = run(*words, "--container", "array_records", "--output", folder)
    assert unknown.exit_code == 2
    assert "did you mean 'array_record'" in unknown.stderr
    itself = run(*words, "--container", "tfrecord", "--output", f"{mixed.output}/")
    assert itself.exit_code == 2
    assert "itself; choose another path" in itself.stderr
    nothing = run("convert", str(tmp_path / "none"), "--container", "tfrecord", "--output", folder)
    assert nothing.exit_code == 1
    assert "nothing is there" in nothing.stderr
    (tmp_path / "others").mkdir()
    shutil.copy(mixed.output / mixed.shards()[0], tmp_path / "others" / "a.tfrecord")
    others = run("convert", str(tmp_path / "others"), "--container", "tfrecord", "--output", folder)
    assert others.exit_code == 1
    assert "no dataset of Shardbeam" in others.stderr
    assert "shardbeam build tfrecord" in others.stderr
    assert not (tmp_path / "out").exists()


def test_a_dataset_that_changed_is_refused(mixed: Build, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(mixed.output, copy)
    name = mixed.shards()[0]
    other = mixed.shards()[1]
    shutil.copy(mixed.output / other, copy / name)
    changed = convert(copy, tmp_path / "again")
    assert changed.exit_code == 1
    assert "the dataset has changed" in changed.stderr
    (copy / "index" / f"{name}.parquet").unlink()
    gone = convert(copy, tmp_path / "again")
    assert gone.exit_code == 1
    assert "the index of a shard is missing" in gone.stderr
    assert not (tmp_path / "again" / "dataset_info.json").exists()
