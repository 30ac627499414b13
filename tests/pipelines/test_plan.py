"""The plan of a config: sources, splits, labels, output, and the plan's own name."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from shardbeam.configs.load import ConfigError
from shardbeam.pipelines.plan import Plan, absolute_path, make_plan
from tests.support.archive_files import Files, write_files
from tests.support.config_making import make_config
from tests.support.image_makers import plain_jpeg
from tests.support.screens import check_screen

Json = dict[str, Any]

BOXES = {
    "images": [{"id": 1, "file_name": "a.jpg", "width": 32, "height": 24}],
    "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 1, 9, 9]}],
    "categories": [{"id": 1, "name": "cat"}],
}
FILES: Files = {
    "images/cat/a.jpg": plain_jpeg(),
    "images/dog/b.jpg": plain_jpeg(),
    "split/train/cat/a.jpg": plain_jpeg(),
    "split/val/cat/b.jpg": plain_jpeg(),
    "1.json": json.dumps(BOXES),
    "2.json": json.dumps(BOXES),
    "rows.csv": "label,age\ncat,3\n",
    "table.csv": "image,label,age\na.jpg,cat,3\n",
    "names.csv": "image,label,age\na.jpg,cat,young\n",
    "exclude.txt": "a.jpg\nb.jpg\n",
}
COCO = {"format": "coco", "images": "images", "annotations": ["*.json"]}
CLASSES = {"format": "image-folder", "images": "images"}
SPLIT_FOLDERS = {"format": "image-folder", "images": "split"}
ROWS = {"format": "csv", "manifest": "rows.csv", "no_images": True}
TABLE = {"format": "csv", "manifest": "table.csv", "image_root": "images"}
CLASS_MAPS = {
    "format": "coco",
    "images": "images",
    "semantic_masks": "images",
    "mask_classes": {"1": "cat"},
}
NAMES = {**TABLE, "manifest": "names.csv"}
FRACTIONS = {"fractions": {"train": 0.8, "val": 0.2}}


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with data, which is the working folder."""
    folder = write_files(tmp_path / "data", FILES)
    groups = {"group": [0, 0], "source": ["train"] * 2, "key": ["a.jpg", "b.jpg"]}
    parquet.write_table(pa.table({**groups, "keep": [True, False]}), folder / "groups.parquet")
    monkeypatch.chdir(folder)
    return folder


def plan(source: object = COCO, **keys: object) -> Plan:
    """Makes the plan of one source, or of `{split: source or list of sources}`."""
    where = {"source": source} if "format" in dict(source or {}) else {"splits": source}  # type: ignore[call-overload]
    complete = {"name": "toy", "output": {"path": "out"}, **where, **keys}
    return make_plan(make_config(complete, origin="config"))


def problem(source: object = COCO, **keys: object) -> str:
    with pytest.raises(ConfigError) as caught:
        plan(source, **keys)
    return str(caught.value)


def sample(**output: object) -> Mapping[str, object]:
    return {"limit": 5, "output": {"path": "out", **output}}


def test_paths_are_absolute_and_patterns_expanded(data: Path) -> None:
    (source,) = plan().sources
    assert list(source.format.roots()) == [str(data / "images")]
    assert source.format.annotations == [str(data / "1.json"), str(data / "2.json")]  # type: ignore[attr-defined]


def test_workers_find_the_file_of_a_custom_format(data: Path) -> None:
    (data / "mine.py").write_text(
        "from shardbeam.transforms.formats.image_folder import ImageFolderFormat\n"
        "class Mine(ImageFolderFormat, frozen=True, kw_only=True):\n"
        "    pass\n"
    )
    (source,) = plan({"format": "mine.py:Mine", "images": "images"}).sources
    assert source.format.format == f"{data}/mine.py:Mine"
    assert plan(CLASSES).sources[0].format.format == "image-folder"


def test_the_home_folder_and_uris(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(data))
    assert absolute_path("~/x") == f"{data}/x"
    assert absolute_path("gs://bucket/x") == "gs://bucket/x"
    with pytest.raises(ConfigError, match="not valid UTF-8"):
        absolute_path("x\udcff")


def test_all_that_is_read_is_an_input_once(data: Path) -> None:
    """No output may be among these files and folders."""
    found = plan({"train": [COCO, CLASSES], "val": TABLE}, exclude="exclude.txt")
    read = ["images", "*.json", "table.csv", "1.json", "2.json", "exclude.txt"]
    assert sorted(found.inputs) == sorted(f"{data}/{path}" for path in read)


@pytest.mark.parametrize(
    ("path", "limit", "folder"),
    [
        ("out", None, "{data}/out"),
        ("out/", 5, "{data}/out-limit-5"),
        ("gs://bucket/out/", None, "gs://bucket/out/"),
        ("gs://bucket/out/", 5, "gs://bucket/out-limit-5"),
        ("gs://bucket", 5, "gs://bucket/limit-5"),
    ],
)
def test_a_sample_has_a_folder_of_its_own(
    path: str, limit: int | None, folder: str, data: Path
) -> None:
    found = plan(limit=limit, output={"path": path})
    assert found.output == found.output_template == folder.format(data=data)


@pytest.mark.usefixtures("data")
class TestSamples:
    def test_a_sample_is_not_measured_by_the_whole_dataset(self) -> None:
        """Readers are not led to it, either."""
        keys: Json = {"num_shards": 7, "latest": "latest"}
        expect = {"min_images": 100}
        whole = plan(output={"path": "out", **keys}, expect=expect)
        limited = plan(limit=5, output={"path": "out", **keys}, expect=expect)
        assert (whole.num_shards, limited.num_shards) == (7, 0)
        assert (Path(whole.latest).name, limited.latest) == ("latest", "")
        assert (whole.dataset.expect.min_images, limited.dataset.expect.min_images) == (100, None)
        assert (whole.join.limit, limited.join.limit) == (None, 5)

    def test_only_a_whole_dataset_that_writes_masks_must_have_some(self) -> None:
        whole, limited = (plan(masks="png", limit=limit).join.masks for limit in (None, 5))
        assert (whole, limited) == (True, False)
        assert not plan(masks="none").join.masks

    def test_by_size_where_no_number_is_given(self) -> None:
        found = plan(output={"path": "out", "shard_size_mb": 1.5})
        assert (found.num_shards, found.shard_size_bytes) == (0, 1_500_000)
        assert found.latest == ""


@pytest.mark.usefixtures("data")
class TestSplits:
    @pytest.mark.parametrize(
        ("source", "keys", "names", "sources"),
        [
            (COCO, {}, ("train",), ["source"]),
            (COCO, FRACTIONS, ("train", "val"), ["source"]),
            ({"val": COCO}, {}, ("val",), ["val"]),
            # The first source keeps its images where they are when others come behind it.
            (
                {"train": [COCO, CLASSES], "val": COCO},
                {},
                ("train", "val"),
                ["train", "train/1", "val"],
            ),
            (SPLIT_FOLDERS, {}, ("train", "val"), ["source"]),
            (SPLIT_FOLDERS, FRACTIONS, ("train", "val"), ["source"]),
        ],
    )
    def test_splits(
        self, source: object, keys: Json, names: tuple[str, ...], sources: list[str]
    ) -> None:
        found = plan(source, **keys)
        assert found.join.splits.names == found.dataset.splits == names
        assert [each.name for each in found.sources] == sources
        assert bool(found.join.splits.fractions) == bool(keys)
        assert bool(found.join.splits.predefined) == (source is SPLIT_FOLDERS and not keys)

    @pytest.mark.parametrize(
        ("keys", "exact", "stratify"),
        [({}, False, False), ({"exact": True}, True, False), ({"stratify": True}, True, True)],
    )
    def test_stratified_splits_are_exact(self, keys: Json, exact: bool, stratify: bool) -> None:
        splits = plan(seed=3, **FRACTIONS, **keys).join.splits
        assert (splits.exact, splits.stratify, splits.seed) == (exact, stratify, 3)

    def test_groups_by_a_pattern_and_by_a_file(self) -> None:
        by_pattern = plan(group_by="^(.)", **FRACTIONS)
        by_file = plan(group_by="groups.parquet", **FRACTIONS)
        assert (by_pattern.join.splits.group_by, by_pattern.join.splits.grouped) == ("^(.)", False)
        assert (by_file.join.splits.group_by, by_file.join.splits.grouped) == (None, True)
        assert by_pattern.join.groups is None
        assert by_file.join.groups is not None
        assert by_file.dataset.config["group_by"] == "groups.parquet"


@pytest.mark.usefixtures("data")
class TestKinds:
    @pytest.mark.parametrize(
        ("source", "keys", "found"),
        [
            # objects, must hold objects, classifies
            (COCO, {}, (True, True, False)),
            (COCO, {"objects": "none"}, (True, False, False)),
            (CLASSES, {}, (False, False, True)),
            ({"train": [COCO, CLASSES]}, {}, (True, True, False)),
            (ROWS, {}, (False, False, False)),
        ],
    )
    def test_what_a_dataset_is_of(
        self, source: object, keys: Json, found: tuple[bool, bool, bool]
    ) -> None:
        made = plan(source, **keys)
        assert (made.objects, made.dataset.objects, made.dataset.classifies) == found

    @pytest.mark.parametrize(
        ("source", "keys", "find", "near"),
        [
            (COCO, {}, "all", 3),
            (COCO, {"image": {"verify": "header"}}, "all", 0),
            (COCO, {"image": {"verify": "decode"}, "duplicates": {"near": 1}}, "all", 1),
            (COCO, {"duplicates": {"find": "none"}}, "none", 3),
            (ROWS, {}, "none", 3),
        ],
    )
    def test_what_is_there_several_times(
        self, source: object, keys: Json, find: str, near: int
    ) -> None:
        duplicates = plan(source, **keys).dataset.duplicates
        assert (duplicates.find, duplicates.near) == (find, near)

    def test_masks_and_ids_reach_the_format(self) -> None:
        written, left = (plan(masks=masks).sources[0].format for masks in ("png", "none"))
        assert (written._masks, left._masks) == (True, False)  # type: ignore[attr-defined]

    @pytest.mark.parametrize(
        ("bits", "ids", "hint"), [(8, (1, 255), "; or set panoptic.bits: 16"), (16, (1, 65535), "")]
    )
    def test_ids_of_panoptic_maps(self, bits: int, ids: tuple[int, int], hint: str) -> None:
        source = {
            "format": "coco",
            "images": "images",
            "panoptic": "1.json",
            "panoptic_masks": "images",
        }
        labels = plan(source, panoptic={"bits": bits}).join.labels
        assert (labels.map_ids, labels.map_ids_hint) == (ids, hint)
        assert plan().join.labels.map_ids is None

    def test_ids_of_class_maps_leave_out_the_one_that_readers_ignore(self) -> None:
        found = plan(CLASS_MAPS)
        assert (found.join.labels.map_ids, found.join.labels.map_ids_hint) == ((0, 254), "")

    def test_the_join_knows_whether_annotated_sizes_count(self) -> None:
        ignored, scaled = (
            plan(image={"annotated_size": size}).join.ignores_sizes for size in ("ignore", "scale")
        )
        assert (ignored, scaled) == (True, False)

    @pytest.mark.parametrize(
        ("source", "several"),
        [
            (CLASSES, False),
            ({"train": [CLASSES, CLASSES]}, False),
            ({"train": [CLASSES, TABLE]}, True),
            ({"train": [CLASSES, COCO]}, True),
        ],
    )
    def test_images_have_one_label_only_if_every_source_gives_exactly_one(
        self, source: object, several: bool
    ) -> None:
        repeated = {spec.key: spec.repeated for spec in plan(source).dataset.features}
        assert repeated["image/class/label"] == several

    def test_how_boxes_were_read_is_kept_for_sources_with_boxes(self) -> None:
        found = plan({"train": [COCO, CLASSES]})
        assert [*found.dataset.box_readings] == ["train"]

    def test_columns_of_tables_are_features(self) -> None:
        found = plan({"train": [TABLE, TABLE]})
        assert [spec.key for spec in found.dataset.features if spec.key == "age"] == ["age"]


@pytest.mark.usefixtures("data")
class TestOutput:
    @pytest.mark.parametrize(
        ("output", "shard", "file_format"),
        [
            ({}, "toy-train.tfrecord-00000-of-00002", "tfrecord"),
            (
                {"container": "array_record"},
                "toy-train.array_record-00000-of-00002",
                "array_record",
            ),
            ({"container": "webdataset"}, "toy-train-00000-of-00002.tar", "webdataset"),
            ({"container": "hf_parquet"}, "toy-train-00000-of-00002.parquet", "hf_parquet"),
            ({"container": "webdataset", "file_name": "{split}.tar"}, "train.tar", "webdataset"),
        ],
    )
    def test_names_of_shards(self, output: Json, shard: str, file_format: str) -> None:
        if file_format == "array_record":
            pytest.importorskip("array_record")
        found = plan(output={"path": "out", **output})
        assert found.dataset.naming.file_name(split="train", shard_index=0, num_shards=2) == shard
        assert found.dataset.container == file_format

    def test_the_manifest_keeps_the_config_without_places(self, data: Path) -> None:
        kept = plan(output={"path": "out", "latest": "latest"}, exclude="exclude.txt").dataset
        assert str(data) not in json.dumps(kept.config)
        assert kept.config["source"]["format"] == "coco"
        assert not {"images", "annotations"} & set(kept.config["source"])
        assert {"path", "latest"} & set(kept.config["output"]) == set()
        assert "exclude" not in kept.config
        assert kept.excluded == 2

    def test_the_manifest_has_newer_keys_only_where_they_are_set(self, tmp_path: Path) -> None:
        write_files(tmp_path, {"t.csv": "image,label\n1.jpg,cat\n", "1.jpg": plain_jpeg()})
        table = {"format": "csv", "manifest": [f"{tmp_path}/t.csv"], "image_root": [str(tmp_path)]}
        newer = {"decimal", "one_hot_values"}
        assert not newer & set(plan(table).dataset.config["source"])
        written = plan({**table, "decimal": ","}).dataset.config["source"]
        assert written["decimal"] == ","

    def test_passwords_are_hidden(self) -> None:
        kept = plan(description="from s3://me:secret@host/x").dataset
        assert "secret" not in kept.description
        assert "secret" not in json.dumps(kept.config)


SAME: list[Json] = [
    {"output": {"path": "elsewhere", "latest": "latest"}},
    {"rejects": {"max_ratio": 0.5}},
    {"duplicates": {"leaks": "refuse"}},
    {"expect": {"min_images": 1}},
]
OTHER: list[Json] = [
    {"seed": 1},
    {"name": "other"},
    {"image": {"verify": "header"}},
    {"masks": "png"},
    {"limit": 5},
    {"exclude": "exclude.txt"},
    {"output": {"path": "out", "num_shards": 3}},
    {"source": {**COCO, "annotations": ["1.json"]}},
    {"group_by": "groups.parquet", **FRACTIONS},
    FRACTIONS,
]


@pytest.mark.usefixtures("data")
class TestDigest:
    @pytest.mark.parametrize("keys", SAME)
    def test_what_is_tolerated_makes_no_other_plan(self, keys: Json) -> None:
        assert plan(**keys).digest == plan().digest

    def test_whatever_changes_files_makes_another(self) -> None:
        digests = [plan(**{"source": COCO, **keys}).digest for keys in [{}, *OTHER]]
        assert len(set(digests)) == len(digests)

    def test_another_file_of_what_is_left_out_makes_another(self, data: Path) -> None:
        before = plan(exclude="exclude.txt").digest
        (data / "exclude.txt").write_text("a.jpg\n")
        assert plan(exclude="exclude.txt").digest != before


ROWS_OF_LABELS = {**ROWS, "columns": {"label": "string"}}
# Sources and other keys that are refused.
REFUSED: list[tuple[object, Json]] = [
    ({"train": [ROWS, CLASSES]}, {}),
    ({"train": [TABLE, NAMES]}, {}),
    (ROWS_OF_LABELS, {"stratify": True, **FRACTIONS}),
    (CLASSES, {"stratify": True, "group_by": "x", **FRACTIONS}),
    (ROWS_OF_LABELS, {"expect": {"min_images_per_class": 1}}),
    (CLASSES, {"labels": {"min_side_px": 2}}),
    (CLASSES, {"labels": {"min_area_px": 2}}),
    (CLASSES, {"expect": {"min_objects": 1}}),
    (CLASSES, {"expect": {"max_crowds": 0.1}}),
    (COCO, {"output": {"path": "out", "container": "zip"}}),
    (COCO, {"output": {"path": "out", "file_name": "all.tfrecord"}, **FRACTIONS}),
    (CLASSES, {"expect": {"max_findings": {"same_picture": 0}}, "duplicates": {"find": "none"}}),
    (COCO, {"expect": {"max_findings": {"unequal_objects": 0}}, "duplicates": {"find": "none"}}),
    (CLASSES, {"expect": {"max_findings": {"low_contrast": 0}}, "image": {"verify": "header"}}),
    # Only the plan knows the splits of these folders.
    (SPLIT_FOLDERS, {"output": {"path": "out", "file_name": "all.tfrecord"}}),
    (SPLIT_FOLDERS, {"output": {"path": "out", "num_shards": {"train": 1, "test": 1}}}),
]


@pytest.mark.usefixtures("data")
def test_refusals() -> None:
    shown = "".join(f"{source} {keys}\n    {problem(source, **keys)}\n" for source, keys in REFUSED)
    check_screen("plan_refusals", shown)


@pytest.mark.usefixtures("data")
def test_limits_on_findings_that_are_looked_for_are_kept() -> None:
    limits = {"same_picture": 0, "dark_picture": 2}
    assert plan(CLASSES, expect={"max_findings": limits}).dataset.expect.max_findings == limits


@pytest.mark.usefixtures("data")
def test_the_name_of_a_plan_is_hexadecimal() -> None:
    """It is part of paths in staging, which must not change between runs."""
    assert re.fullmatch("[0-9a-f]{16}", plan().digest)


def test_a_split_of_a_source_s_own_is_a_name(data: Path) -> None:
    write_files(data / "split", {"1st half/cat/a.jpg": plain_jpeg()})
    source = {**SPLIT_FOLDERS, "split_folders": True}
    assert "'1st half' cannot name a split: expected a letter" in problem(source)


@pytest.mark.usefixtures("data")
def test_one_source_with_a_file_an_image_is_enough() -> None:
    labelme = {"format": "labelme", "root": "images"}
    assert plan({"train": [COCO, labelme]}).dataset.file_per_image
    assert not plan().dataset.file_per_image
