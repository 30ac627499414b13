"""`shardbeam convert`: every Example comes to the same place with the same bytes."""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

import shardbeam
from shardbeam.transforms.core.errors import InputError
from tests.support.builds import Build, build, build_config
from tests.support.dataset import coco_words, read_tree, run
from tests.support.format_samples import SAMPLES, FormatSample, SharedData
from tests.support.manifests import list_again
from tests.support.tfrecords import draw_image

# Maps of segments cannot be read back, and tables have no images.
NOT_CONVERTED = {"coco-panoptic"}
# These are converted once, and that through all containers.
QUICK = {"coco-masks", "yolo-pose"}
THROUGH_ALL = {"voc-maps", "cifar100", *QUICK}


def convert(
    source: Path, output: Path, *, container: str = "tfrecord", exit_code: int | None = 0
) -> Build:
    words = ("convert", str(source), "--container", container, "--output", str(output))
    result = run(*words, "--json", exit_code=exit_code)
    summary = json.loads(result.stdout) if result.stdout else {}
    return Build(output, result.exit_code, summary, result.stderr)


def check_same(before: Build, after: Build) -> None:
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
        old, new = (parquet.read_table(each.output / "index" / name) for each in (before, after))
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
    return build_config(
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


def test_settings_do_not_matter(mixed: Build, tmp_path: Path) -> None:
    check_same(mixed, convert(mixed.output, tmp_path / "again"))


def test_an_example_of_each_object(shapes: Path, tmp_path: Path) -> None:
    settings = ("--set", "example_per=annotation", "--set", "masks=png")
    more = ("--set", "features.rename={annotation/bbox: bbox}", "--set", "output.num_shards=3")
    words = coco_words(shapes, tmp_path / "out", *settings, *more)
    assert run(*words).exit_code == 0
    before = Build(tmp_path / "out", 0, {}, "")
    check_same(before, convert(before.output, tmp_path / "again"))


@pytest.mark.parametrize(
    "sample",
    [
        pytest.param(each, marks=() if each.name == "voc-maps" else pytest.mark.slow, id=each.name)
        for each in SAMPLES
        if each.name in THROUGH_ALL
    ],
)
def test_a_dataset_comes_back_through_all_containers(
    sample: FormatSample, tmp_path: Path, find_shared_data: SharedData
) -> None:
    data = sample.place(tmp_path / "data", shared_data=find_shared_data)
    before = build(*sample.command(data), "--set", "output.num_shards=2", output=tmp_path / "out")
    after = before
    containers = ["webdataset", "hf_parquet", "array_record", "tfrecord"]
    if importlib.util.find_spec("array_record") is None:
        containers.remove("array_record")
    for number, container in enumerate(containers):
        after = convert(after.output, tmp_path / str(number), container=container)
        assert run("verify", str(after.output)).exit_code == 0
        # What was unpacked for it is gone.
        assert not list(after.output.glob("shardbeam-*"))
    check_same(before, after)


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Eight images in two shards with as many Examples."""
    folder = tmp_path_factory.mktemp("halves")
    for number in range(8):
        path = folder / "images" / ("cat", "dog")[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(draw_image("JPEG", width=20 + number, height=10))
    built = build(
        *("image-folder", "--images", folder / "images", "--name", "pets"),
        *("--set", "output.num_shards=2", "--set", "seed=13"),
        output=folder / "out",
    )
    assert [shard["examples"] for shard in built.manifest["splits"]["train"]["shards"]] == [4, 4]
    return built


@pytest.fixture(scope="module", params=["webdataset", "hf_parquet", "array_record"])
def other(
    request: pytest.FixtureRequest, halves: Build, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Build]:
    """The dataset in another container, and its name."""
    if request.param == "array_record":
        pytest.importorskip("array_record")
    folder = tmp_path_factory.mktemp(request.param)
    return request.param, convert(halves.output, folder / "out", container=request.param)


def test_a_build_reads_other_containers_where_they_lie(
    other: tuple[str, Build], halves: Build, tmp_path: Path
) -> None:
    container, converted = other
    if container == "array_record":
        check_refused(converted, tmp_path)
        return
    words = ("init", str(converted.output))
    assert f"dataset of Shardbeam ({container})" in run(*words, exit_code=0).stderr
    shutil.copytree(converted.output, tmp_path / "above" / "one")
    places = {
        "dataset": converted.output,
        "folder_of_datasets": tmp_path / "above",
        "file": converted.output / converted.shards()[0],
    }
    splits = {
        name: {"format": "tfrecord", "tfrecords": [str(path)]} for name, path in places.items()
    }
    built = build_config({"splits": splits}, folder=tmp_path)
    assert {name: built.counts(name)["examples"] for name in splits} == {
        "dataset": 8,
        "folder_of_datasets": 8,
        "file": 4,
    }
    old, new = halves.by_key("train"), built.by_key("dataset")
    assert {key: each.features for key, each in new.items()} == {
        key: each.features for key, each in old.items()
    }


def check_refused(converted: Build, folder: Path) -> None:
    """Checks that compressed images are read neither by a build nor on a cluster."""
    source = ("tfrecord", "--tfrecords", converted.output)
    built = build(*source, output=folder / "again", exit_code=1)
    assert "array_record files do not store images in one piece" in built.stderr
    command = f"shardbeam convert {converted.output} --container tfrecord --output DIR"
    assert command in built.stderr
    words = ("convert", str(converted.output), "--container", "tfrecord")
    cluster = run(*words, "--output", str(folder / "again"), "--runner", "FlinkRunner")
    assert cluster.exit_code == 2
    assert "--runner=FlinkRunner: array_record files are unpacked" in cluster.stderr


def test_open_unpacks_other_containers(
    other: tuple[str, Build], halves: Build, tmp_path: Path
) -> None:
    converted = tmp_path / "converted"
    shutil.copytree(other[1].output, converted)
    with pytest.raises(InputError, match="with cache=DIR, their Examples are unpacked into DIR"):
        shardbeam.open(str(converted), split="train")
    cache = str(tmp_path / "cache")
    opened = shardbeam.open(str(converted), split="train", cache=cache)
    expected = shardbeam.open(str(halves.output), split="train")
    assert list(opened) == list(expected)
    assert pickle.loads(pickle.dumps(opened))[7] == expected[7]
    (copies,) = Path(cache).iterdir()
    unpacked = sorted(path.read_bytes() for path in copies.glob("*-pets*"))
    assert unpacked == sorted((halves.output / name).read_bytes() for name in halves.shards())
    # Another index, damage, and an index whose lengths no disk can hold.
    for number, (value, problem) in enumerate(
        [(7, "its records have other lengths"), (-7, "does not fit"), (1 << 60, "does not fit")]
    ):
        bad = tmp_path / str(number)
        shutil.copytree(converted, bad)
        name = json.loads((bad / "manifest.json").read_text())["splits"]["train"]["shards"][0]
        change_index(bad / "index" / f"{name['path']}.parquet", set_first("length", value))
        list_again(bad)
        with pytest.raises(InputError, match=problem):
            list(shardbeam.open(str(bad), split="train", cache=cache))
    change = bytearray((converted / name["path"]).read_bytes())
    change[len(change) // 2] ^= 1
    (converted / name["path"]).write_bytes(change)
    shutil.rmtree(cache)
    with pytest.raises(InputError, match="damaged: its checksum is"):
        list(shardbeam.open(str(converted), split="train", cache=cache))


def test_damaged_files_of_other_containers(other: tuple[str, Build], tmp_path: Path) -> None:
    container, good = other
    first, second = good.shards()

    def truncate(folder: Path) -> None:
        os.truncate(folder / first, (folder / first).stat().st_size // 2)

    def change_a_byte(folder: Path) -> None:
        data = bytearray((folder / first).read_bytes())
        data[len(data) // 2] ^= 1
        (folder / first).write_bytes(data)

    def exchange_shards(folder: Path) -> None:
        exchange(folder, [first, second])

    def name_another_container(folder: Path) -> None:
        for name, old, new in (
            ("manifest.json", container, "tfrecord"),
            ("dataset_info.json", f'"{container}"', '"tfrecord"'),
        ):
            path = folder / name
            path.write_text(path.read_text().replace(old, new))

    def name_no_container(folder: Path) -> None:
        path = folder / "manifest.json"
        path.write_text(path.read_text().replace(f'"container":"{container}"', '"container":[7]'))
        path.write_text(path.read_text().replace(f'"container": "{container}"', '"container": [7]'))

    def remove_info(folder: Path) -> None:
        (folder / "dataset_info.json").unlink()

    for number, (change, problems) in enumerate(
        [
            (truncate, ["bytes, but the manifest says", "damaged: its checksum is", "one piece"]),
            (change_a_byte, ["damaged: its checksum is", "one piece"]),
            (exchange_shards, ["checksum is", "the manifest says", "one piece"]),
            (name_another_container, ["manifest", "TFRecord file", "is missing"]),
            (name_no_container, ["names a container that this version does not know: [7]"]),
            (remove_info, ["not committed", "no committed dataset"]),
        ]
    ):
        folder = tmp_path / f"bad{number}"
        shutil.copytree(good.output, folder)
        change(folder)
        done = convert(folder, tmp_path / f"converted{number}", exit_code=1)
        assert any(each in done.stderr for each in problems), (change, done.stderr)
        assert done.stderr.count("shardbeam: error:") == 1
        assert not (done.output / "dataset_info.json").exists()


def test_a_dataset_that_changed_is_refused(mixed: Build, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(mixed.output, copy)
    name = mixed.shards()[0]
    other = mixed.shards()[1]
    shutil.copy(mixed.output / other, copy / name)
    changed = convert(copy, tmp_path / "again", exit_code=1)
    assert "the dataset has changed" in changed.stderr
    change_index(copy / "index" / f"{name}.parquet", set_first("length", 7))
    changed = convert(copy, tmp_path / "again", exit_code=1)
    assert "--repair CONFIG.yaml" in changed.stderr
    (copy / "index" / f"{name}.parquet").unlink()
    gone = convert(copy, tmp_path / "again", exit_code=1)
    assert "the index of a shard is missing" in gone.stderr
    assert not (tmp_path / "again" / "dataset_info.json").exists()


# What was read is compared with the manifest


@pytest.fixture
def copied(halves: Build, tmp_path: Path) -> Path:
    shutil.copytree(halves.output, tmp_path / "copied")
    return tmp_path / "copied"


def change_index(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    parquet.write_table(change(parquet.read_table(path)), path)


def set_first(column: str, value: object) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        field = table.schema.field(column)
        values = pa.array([value, *table[column].to_pylist()[1:]], field.type)
        return table.set_column(table.schema.get_field_index(column), field, values)

    return change


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda table: table.slice(0, 0), "has 0 rows for 4 Examples"),
        (lambda table: table.slice(0, 3), "has 3 rows for 4 Examples"),
        (set_first("crc32c", 7), "its index has no such record, or says that another one is there"),
        (set_first("length", 7), "its index has no such record, or says that another one is there"),
        (set_first("offset", 7), "its index has no such record, or says that another one is there"),
        (set_first("key", None), "row 0: has no value in 'key'"),
    ],
)
def test_an_index_that_does_not_fit_its_shard(
    change: Callable[[pa.Table], pa.Table], problem: str, copied: Path, halves: Build
) -> None:
    name = halves.shards()[1]
    change_index(copied / "index" / f"{name}.parquet", change)
    # As if someone had written manifest and index.
    list_again(copied)
    refused = convert(copied, copied.parent / "again", exit_code=1)
    assert problem in refused.stderr
    assert name in refused.stderr
    assert refused.stderr.count("shardbeam: error:") == 1
    assert not (copied.parent / "again" / "dataset_info.json").exists()


def drop_last(copied: Path, names: Sequence[str]) -> None:
    table = parquet.read_table(copied / "index" / f"{names[0]}.parquet")
    os.truncate(copied / names[0], table["offset"][-1].as_py())


def exchange(copied: Path, names: Sequence[str]) -> None:
    (copied / names[0]).rename(copied / "other")
    (copied / names[1]).rename(copied / names[0])
    (copied / "other").rename(copied / names[1])


def delete(copied: Path, names: Sequence[str]) -> None:
    (copied / names[0]).unlink()


def damage_manifest(copied: Path, names: Sequence[str]) -> None:
    path = copied / "manifest.json"
    path.write_bytes(path.read_bytes()[:-9])


def shorten_info(copied: Path, names: Sequence[str]) -> None:
    path = copied / "dataset_info.json"
    info = json.loads(path.read_bytes())
    info["splits"][0]["shardLengths"].pop()
    info["splits"][0]["filepathTemplate"] = names[0]
    path.write_text(json.dumps(info))


@pytest.mark.parametrize(
    ("change", "of_build", "of_convert"),
    [
        (drop_last, "holds 3 Examples, and the manifest says 4", "3 Examples, and the manifest"),
        (exchange, ", and the manifest says ", "its index has no such record"),
        (delete, ", which its manifest lists; copy it from where", " is missing"),
        (damage_manifest, "not a manifest of Shardbeam", "not a manifest of Shardbeam"),
        (shorten_info, None, "lists other shards than the manifest"),
    ],
)
def test_a_dataset_that_is_not_what_its_manifest_says(
    change: Callable[[Path, Sequence[str]], None],
    of_build: str | None,
    of_convert: str,
    copied: Path,
    halves: Build,
) -> None:
    change(copied, halves.shards())
    words, output = ("tfrecord", "--tfrecords", copied), copied.parent / "built"
    built = build(*words, output=output, exit_code=1 if of_build else 0)
    refused = convert(copied, copied.parent / "a", exit_code=1)
    for done, problem in ((built, of_build), (refused, of_convert)):
        if problem is None:
            continue
        assert problem in done.stderr
        assert done.stderr.count("shardbeam: error:") == 1
        assert not (done.output / "dataset_info.json").exists()


def test_less_is_written_only_where_the_config_says_so(halves: Build, tmp_path: Path) -> None:
    words = ("tfrecord", "--tfrecords", halves.output)
    some = build(*words, "--limit", "3", output=tmp_path / "some")
    assert some.counts()["examples"] == 3
    more = ("--set", "labels.exclude=[dog]", "--set", "rejects.max_ratio=1")
    assert build(*words, *more, output=tmp_path / "cats").exit_code == 0
