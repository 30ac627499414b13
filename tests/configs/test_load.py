"""Configs that are accepted, and the errors of others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.configs.load import ConfigError
from shardbeam.pipelines.config_file import load_config
from shardbeam.transforms.formats.base import built_in_formats
from shardbeam.transforms.formats.coco.coco import CocoFormat
from shardbeam.transforms.formats.image_folder import ImageFolderFormat
from tests.support.config_making import make_config
from tests.support.making import Good
from tests.support.screens import check_screen

COCO = {"format": "coco", "images": "images/", "annotations": ["instances.json"]}
FOLDERS = {"format": "image-folder", "images": "images/"}
SPLITS: dict[str, Any] = {"name": "d", "splits": {"train": COCO}, "output": {"path": "out"}}
FRACTIONS: dict[str, Any] = {
    "name": "d",
    "source": COCO,
    "fractions": {"train": 0.8, "validation": 0.2},
    "output": {"path": "out"},
}


def test_a_file_with_all_that_there_is(tmp_path: Path) -> None:
    path = tmp_path / "d.yaml"
    path.write_text(
        """\
# A comment.
name: d
version: 1.2.3
splits:
  train: {format: coco, images: gs://b/train, annotations: [a.json, b.json]}
  validation: {format: image-folder, images: val, classes: classes.txt}
  test: {format: "tests.support.making:Good", images: test, file: labels.txt}
image: {verify: none, max_side: 640, background: "#00ff00"}
labels: {include: [yes, no], merge: {animal: [cat, dog]}}
features: {rename: {image/encoded: image_raw}, constants: {origin: 2024-05-01}}
output: {path: out, num_shards: {train: 4}, shard_size_mb: 1e2}
rejects: {max_ratio: 0}
duplicates: {near: 0, leaks: refuse}
""",
        encoding="utf-8",
    )
    config = load_config(path)
    assert config.version == "1.2.3"
    assert config.splits == {
        "train": CocoFormat(format="coco", images="gs://b/train", annotations=["a.json", "b.json"]),
        "validation": ImageFolderFormat(format="image-folder", images="val", classes="classes.txt"),
        "test": Good(format="tests.support.making:Good", images="test", file="labels.txt"),
    }
    assert config.image.verify == "none"
    assert config.labels.include == ["yes", "no"]
    assert config.features.constants == {"origin": "2024-05-01"}
    assert config.output.num_shards == {"train": 4}
    assert config.output.shard_size_mb == 100
    assert config.rejects.max_ratio == 0
    assert (config.duplicates.near, config.duplicates.leaks) == (0, "refuse")


def test_fractions_may_miss_one_by_rounding() -> None:
    thirds = {"a": 0.333333, "b": 0.333333, "c": 0.333334}
    assert make_config({**FRACTIONS, "fractions": thirds}, origin="").fractions == thirds


def test_a_number_of_shards_for_every_split() -> None:
    raw = {**SPLITS, "output": {"path": "out", "num_shards": 3}}
    assert make_config(raw, origin="").output.num_shards == 3


def test_a_merge_may_swap_two_names() -> None:
    labels = {"merge": {"cat": ["dog"], "dog": ["cat"]}, "include": ["cat"]}
    assert make_config({**SPLITS, "labels": labels}, origin="").labels.include == ["cat"]


REFUSED_WITH_SPLITS: list[dict[str, Any]] = [
    # Unknown keys.
    {"image": {"verfy": "none"}},
    {"labels": {"rename": {"a": ["b"]}}},
    {"image": {"resize": 90}},
    {"image": {"resize": {"width": 9}}},
    {"image": {"resize": {"width": 9, "height": 9, "fit": "fill"}}},
    {"image": {"resize": {"width": 9, "height": 9}, "max_side": 9}},
    {"image": {"imgsz": 90}},
    {"num_workers": 4},
    {"resize": 90},
    {"quality": 90},
    {"splits": {"train": {"format": "coco", "image": "x", "annotations": ["a.json"]}}},
    {"max_sied": 90},
    {"rejects": {"zzz": 1}},
    {"splits": {"train": {**FOLDERS, "annotations": []}}},
    {"splits": {"train": {**COCO, "anotations": []}}},
    {"a\nb": 1},
    # Wrong values.
    {"image": {"quality": "high"}},
    {"image": {"quality": True}},
    {"image": {"max_side": 1.5}},
    {"image": {"verify": "haeder"}},
    {"image": {"verify": None}},
    {"image": None},
    {"image": {"background": None}},
    {"version": 1.0},
    {"version": "1.0.0\n"},
    {"name": "my-data"},
    {"description": 3},
    {"labels": {"include": 1}},
    {"labels": {"include": ["a", 1]}},
    {"labels": {"merge": {"a.b": 1}}},
    {"duplicates": {"near": 4}},
    {"rejects": {"max_ratio": 2}},
    {"output": {"path": "out", "num_shards": {"trian": 1}}},
    {"output": {"path": "out", "num_shards": {"x": 1}}},
    {"expect": {"min_objects": {"trian": 1}}},
    {"expect": {"min_images": 0}},
    {"expect": {"max_crowds": 1.5}},
    {"expect": {"image_width": [1, 2, 3]}},
    {"expect": {"image_height": [9, 8]}},
    {"output": {"path": ""}},
    {"output": {}},
    {"splits": {"train": {**COCO, "annotations": ""}}},
    {"splits": {"train": {**COCO, "annotations": []}}},
    {"splits": {"train": {**COCO, "format": "cocoo"}}},
    {"splits": {"train": {"images": "x"}}},
    # Splits.
    {"splits": {"tr-ain": COCO}},
    {"splits": {"all": COCO}},
    {"source": COCO},
    {"fractions": {"train": 1}},
    {"group_by": "x"},
    # Labels.
    {"labels": {"include": []}},
    {"labels": {"merge": {"a": ["x"], "b": ["x"]}}},
    {"labels": {"merge": {"animal": ["cat"]}, "exclude": ["dog", "cat"]}},
]
REFUSED_WITH_FRACTIONS: list[dict[str, Any]] = [
    {"fractions": {"a": 0.5, "b": 0.4}},
    {"fractions": {"a": 0}},
    {"fractions": {"a": float("nan")}},
    {"group_by": "("},
    {"group_by": "a{99999999999}"},
]


def test_refusals() -> None:
    shown = ""
    for base, refused in ((SPLITS, REFUSED_WITH_SPLITS), (FRACTIONS, REFUSED_WITH_FRACTIONS)):
        for changes in refused:
            with pytest.raises(ConfigError) as caught:
                make_config({**base, **changes}, origin="d.yaml")
            shown += f"{changes}\n    {caught.value}\n"
    check_screen("config_refusals", shown.replace(", ".join(built_in_formats()), "FORMATS"))


@pytest.mark.parametrize("key", ["name", "output"])
def test_required_keys(key: str) -> None:
    raw = {name: value for name, value in SPLITS.items() if name != key}
    with pytest.raises(ConfigError, match=rf"^d\.yaml: {key}: missing; expected "):
        make_config(raw, origin="d.yaml")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the file is empty"),
        (b"# nothing\n", "the file is empty"),
        (b"- a\n", "expected a mapping at the top level, such as `name: coco`"),
        (b"name: \xff\n", "expected text in UTF-8"),
        (b"#" * 1_000_001, "larger than 1 MB; is this a config?"),
        (b"#" * 1_000_000, "the file is empty"),
        (b"name: d\nname: e\n", "line 2, column 1: the key 'name' is given twice"),
    ],
)
def test_files_that_are_no_config(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "d.yaml"
    path.write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert str(caught.value) == f"{path}: {message}"


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"d\.yaml: cannot be read: No such file or directory$"):
        load_config(tmp_path / "d.yaml")
    with pytest.raises(ConfigError, match=r"cannot be read: a folder; only regular files"):
        load_config(tmp_path)


def test_a_mistyped_config_names_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "d.yaml").write_text("name: d")
    with pytest.raises(
        ConfigError, match=r"No such file or directory; did you mean '.*/d\.yaml'\?$"
    ):
        load_config(tmp_path / "d.yml")


def test_paths_beside_the_config_are_not_those_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my data/images").mkdir(parents=True)
    source = "{format: image-folder, images: images, split_folders: true}"
    text = f"name: d\nversion: 1.0.0\nsource: {source}\noutput: {{path: images}}\n"
    (tmp_path / "my data/d.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        load_config("my data/d.yaml")
    assert str(caught.value) == (
        "my data/d.yaml: source.images: images is not in the current folder, to which paths are "
        "relative, but beside the config: run `cd 'my data'` first, and name the config d.yaml"
    )
    # As the message says.
    monkeypatch.chdir("my data")
    assert load_config("d.yaml").name == "d"
    # The one that is here is meant.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "images").mkdir()
    assert load_config("my data/d.yaml").name == "d"


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path: Path) -> None:
    path = tmp_path / "d.yaml"
    path.write_bytes(
        b"\xef\xbb\xbfname: d\nsplits: {train: {format: image-folder, images: x}}\n"
        b"output: {path: out}\n"
    )
    assert load_config(path).name == "d"


names = st.sampled_from(
    [
        "name",
        "splits",
        "train",
        "format",
        "images",
        "coco",
        "image",
        "labels",
        "include",
        "merge",
        "features",
        "constants",
        "output",
        "path",
        "num_shards",
        "source",
        "fractions",
        "options",
    ]
) | st.text(max_size=5)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | names
trees = st.recursive(
    scalars,
    lambda children: st.lists(children, max_size=3) | st.dictionaries(names, children, max_size=4),
    max_leaves=15,
)


@given(changes=st.dictionaries(names, trees, max_size=4))
def test_anything_is_a_config_or_refused_in_one_line(changes: dict[str, Any]) -> None:
    message = "d.yaml: "
    try:
        make_config({**SPLITS, **changes}, origin="d.yaml")
    except ConfigError as error:
        message = str(error)
    assert message.startswith("d.yaml: ")
    assert len(message.splitlines()) == 1
