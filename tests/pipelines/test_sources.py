"""Several sources that make one split, or one dataset together, each in its own format."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pyarrow.parquet
import pytest

from shardbeam.configs.load import ConfigError
from shardbeam.pipelines.config_file import load_config
from tests.support.archive_files import write_files
from tests.support.builds import Build, Json, build_config, coco_document, coco_source
from tests.support.dataset import run
from tests.support.image_makers import plain_jpeg
from tests.support.voc_files import small_voc, voc_object, voc_xml

COUNT = 12


def write_sources(folder: Path) -> tuple[Json, Json]:
    """Writes COCO with cats and dogs, and VOC with dogs and birds; returns both sources."""
    images = {
        f"{number}.jpg": [{"category_id": 7 + number % 2, "bbox": [1, 1, 9, 9]}]
        for number in range(1, COUNT + 1)
    }
    write_files(folder / "coco" / "images", dict.fromkeys(images, plain_jpeg()))
    document = coco_document(images, categories={"dog": 7, "cat": 8}, size=(32, 24))
    boxes = (voc_object(name="dog", xmax=20, ymin=2, ymax=9), voc_object(name="bird", ymin=2))
    files = small_voc(
        **{
            "Annotations/a.xml": voc_xml(*boxes, size=(32, 24)),
            # The same name as in the other source.
            "JPEGImages/1.jpg": plain_jpeg(),
            "Annotations/1.xml": voc_xml(voc_object(ymin=2), size=(32, 24)),
        }
    )
    write_files(folder / "voc", files)
    return (
        coco_source(folder / "coco", document),
        {"format": "voc", "root": str(folder / "voc")},
    )


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> tuple[Json, Json]:
    return write_sources(tmp_path_factory.mktemp("sources"))


@pytest.fixture(scope="module")
def built(sources: tuple[Json, Json], tmp_path_factory: pytest.TempPathFactory) -> Build:
    coco, voc = sources
    folder = tmp_path_factory.mktemp("built")
    config = {
        "splits": {"train": [coco, voc], "test": voc},
        "labels": {"ids": "contiguous"},
    }
    return build_config(config, folder=folder)


def rows_of(built: Build, split: str) -> set[tuple[str, str]]:
    """`(source, key)` of a split's Examples, by the index."""
    rows = [
        (row["source"], row["key"])
        for path in sorted((built.output / "index").iterdir())
        for row in pyarrow.parquet.read_table(path).to_pylist()
        if row["split"] == split
    ]
    assert len(set(rows)) == len(rows)
    return set(rows)


def test_two_formats_make_one_split(built: Build) -> None:
    assert built.exit_code == 0, built.stderr
    voc = {f"JPEGImages/{name}.jpg" for name in ("a", "b", "1")}
    assert rows_of(built, "train") == {
        *(("train", f"{number}.jpg") for number in range(1, COUNT + 1)),
        *(("train/1", key) for key in voc),
    }
    assert rows_of(built, "test") == {("test", key) for key in voc}
    labels = Counter(label for each in built.examples() for label in each.labels)
    # Classes merge by name.
    assert labels == {("dog", 1): 6 + 2, ("cat", 2): 6, ("bird", 3): 1}
    # Only VOC has it, and every Example the key.
    difficult = [each.features["image/object/difficult"] for each in built.examples()]
    assert sorted(difficult) == [[], *[[0]] * (COUNT + 1), [0, 0]]


def test_the_summary_tells_the_sources(built: Build) -> None:
    assert built.summary["sources"] == {"train": COUNT, "train/1": 3, "test": 3}
    (record,) = (built.output / "runs").glob("*.json")
    assert json.loads(record.read_bytes())["outcome"]["sources"] == built.summary["sources"]


def test_a_plan_tells_the_sources_and_what_may_not_be_meant(
    sources: tuple[Json, Json], tmp_path: Path
) -> None:
    coco, voc = sources
    folders = tmp_path / "folders"
    (folders / "cat").mkdir(parents=True)
    (folders / "cat" / "note.txt").write_text("no picture")
    config = {
        "name": "d",
        "splits": {"train": [coco, {"format": "image-folder", "images": str(folders)}, voc]},
        "labels": {"ids": "contiguous"},
        "output": {"path": str(tmp_path / "out")},
    }
    (tmp_path / "d.yaml").write_text(json.dumps(config))
    planned = run("plan", str(tmp_path / "d.yaml"), exit_code=0)
    lines = planned.stdout.splitlines()
    assert "images to read: 12 from train, 0 from train/1, 3 from train/2" in lines
    assert "warning: no image of the source 'train/1' is written" in lines


def test_rejects_tell_the_source(sources: tuple[Json, Json], tmp_path: Path) -> None:
    coco, _ = sources
    write_files(tmp_path / "voc", small_voc())
    (tmp_path / "voc" / "Annotations" / "a.xml").write_text("<annotation>")
    built = build_config(
        {"splits": {"train": [coco, {"format": "voc", "root": str(tmp_path / "voc")}]}},
        folder=tmp_path,
        exit_code=3,
    )
    assert [(each["source"], each["key"]) for each in built.rejects()] == [
        ("train/1", "JPEGImages/a.jpg")
    ]
    assert "JPEGImages/a.jpg of train/1 (annotation_malformed" in built.summary["message"]


def test_images_stay_in_their_splits_when_a_source_is_added(
    sources: tuple[Json, Json], tmp_path: Path
) -> None:
    coco, voc = sources
    settings = {
        "fractions": {"train": 0.6, "test": 0.4},
        "labels": {"ids": "contiguous"},
    }
    alone = build_config({"source": coco, **settings}, folder=tmp_path, name="alone")
    both = build_config({"source": [coco, voc], **settings}, folder=tmp_path, name="both")
    assert alone.summary["sources"] == {}
    for split in ("train", "test"):
        rows = rows_of(both, split)
        assert rows_of(alone, split) == {row for row in rows if row[0] == "source"}
    assert both.summary["sources"] == {"source": COUNT, "source/1": 3}


def test_sources_that_have_splits_themselves(sources: tuple[Json, Json], tmp_path: Path) -> None:
    coco, voc = sources
    built = build_config({"source": [voc, voc]}, folder=tmp_path)
    assert rows_of(built, "val") == {(name, "JPEGImages/b.jpg") for name in ("source", "source/1")}
    mixed = build_config({"source": [voc, coco]}, folder=tmp_path, exit_code=2)
    assert (
        "source: 'source/1' predefines no splits, and the others do (train, val); add fractions"
        in mixed.stderr
    )


@pytest.mark.parametrize(
    ("override", "train"),
    [
        ("splits.train.1.root=other", ["i", "other"]),
        ("splits.train.0.images=other", ["other", "r"]),
        ("splits.train=[{format: voc, root: x}]", ["x"]),
    ],
)
def test_one_of_several_is_overridden(override: str, train: list[str], tmp_path: Path) -> None:
    config = load_config(write_config(tmp_path), overrides=[override])
    roots = [
        getattr(source, "root", getattr(source, "images", None)) for _, source in config.sources()
    ]
    assert roots == [*train, "t"]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "splits.train.2.root=x",
            "splits.train.2.root: splits.train is a list; a place in it is a number from 0 to 1",
        ),
        ("splits.train.root=x", "splits.train.root: splits.train is a list; a place in it is a"),
        ("splits.train.1.roto=x", "splits.train[1].roto: unknown key; did you mean splits.train"),
        ("splits.train=[]", "splits.train: expected a source or several, got an empty list"),
        ("splits.train=[x]", "splits.train[0]: expected a mapping, got 'x'"),
        ("splits.train=x", "splits.train: expected a mapping or a list of such mappings, got 'x'"),
        ("splits.train.1.splits=[a]", "splits.train[1].splits: the config names the splits"),
    ],
)
def test_wrong_lists_of_sources(override: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(write_config(tmp_path), overrides=[override])
    assert str(caught.value).removeprefix("--set: ").startswith(message)


def write_config(folder: Path) -> Path:
    path = folder / "d.yaml"
    path.write_text(
        "name: d\n"
        "splits:\n"
        "  train:\n"
        "    - {format: coco, images: i, annotations: a.json}\n"
        "    - {format: voc, root: r}\n"
        "  test: {format: image-folder, images: t}\n"
        "output: {path: out}\n"
    )
    return path
