"""Settings whose effect only a whole build shows: splits, groups, unannotated images."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.archive_files import write_files
from tests.support.builds import (
    Build,
    Json,
    build_config,
    coco_document,
    coco_source,
    write_coco,
)
from tests.support.image_makers import photograph, save

JPEG = save(photograph(), "JPEG")
WIDTH, HEIGHT = photograph().size


def make_folders(root: Path, keys: Mapping[str, int]) -> Json:
    """Makes `{class: pictures}` and returns the source that reads them."""
    for name, count in keys.items():
        (root / name).mkdir(parents=True)
        for number in range(count):
            (root / name / f"{number:03}.jpg").write_bytes(JPEG)
    return {"format": "image-folder", "images": str(root)}


def make_coco(root: Path, categories: Mapping[str, int], *, unannotated: int = 0) -> Json:
    """Makes a picture with an object of each category `{name: id}`; returns the source."""
    (root / "images").mkdir(parents=True)
    (root / "images" / "all.jpg").write_bytes(JPEG)
    for number in range(unannotated):
        (root / "images" / f"unannotated_{number}.jpg").write_bytes(JPEG)
    objects = [{"category_id": each, "bbox": [1, 1, 9, 9]} for each in categories.values()]
    size = (WIDTH, HEIGHT)
    document = coco_document({"all.jpg": objects}, categories=categories, size=size)
    return coco_source(root, document)


def build_settings(source: Json, *, folder: Path, name: str = "out", **settings: Any) -> Build:  # noqa: ANN401  # Whatever a config holds.
    """Builds one split, `train`, with these settings."""
    return build_config({"splits": {"train": source}, **settings}, folder=folder, name=name)


# labels


# Without it, they are shifted, and a warning says so (test_classes.py).
def test_an_id_0_that_is_asked_for_is_no_reason_to_warn(tmp_path: Path) -> None:
    source = make_coco(tmp_path / "in", {"cat": 0, "dog": 1})
    built = build_settings(source, folder=tmp_path, labels={"first_id": 0})
    (example,) = built.examples()
    assert dict(example.labels) == {"cat": 0, "dog": 1}
    assert built.summary["warnings"] == []


# Boxes in a picture of 64 x 48 pixels: 9 x 9 px, 4 x 30 px, and 10 x 30 px, half of which lies in
# the picture.
SMALL_BOXES = {"square": [1, 1, 9, 9], "thin": [40, 10, 4, 30], "cut": [-5, 10, 10, 30]}


@pytest.mark.parametrize(
    ("labels", "kept"),
    [
        ({"min_side_px": 4, "min_area_px": 81}, ["square", "thin", "cut"]),
        ({"min_side_px": 4.5, "min_area_px": 82}, ["cut"]),
        # Nothing is lost: the image is a negative.
        ({"min_side_px": 10}, []),
    ],
)
def test_small_objects_are_left_out(labels: Json, kept: list[str], tmp_path: Path) -> None:
    write_files(tmp_path / "images", {"all.jpg": JPEG, "large.jpg": JPEG})
    ids = {name: number for number, name in enumerate(("large", *SMALL_BOXES), 1)}
    small = [
        {"category_id": ids[name], "bbox": [2 * side for side in bbox]}
        for name, bbox in SMALL_BOXES.items()
    ]
    images: dict[str, list[Json]] = {"large.jpg": [{"bbox": [10, 10, 40, 30]}], "all.jpg": small}
    document = coco_document(images, categories=ids, size=(WIDTH, HEIGHT))
    # It is annotated at twice its size.
    document["images"][1] |= {"width": 2 * WIDTH, "height": 2 * HEIGHT}
    source = coco_source(tmp_path, document)
    built = build_settings(source, folder=tmp_path, labels=labels, image={"max_side": 48})
    assert [name for name, _ in built.by_key()["all.jpg"].labels] == kept
    assert [name for name, _ in built.by_key()["large.jpg"].labels] == ["large"]
    assert built.rejects() == []
    dropped = len(SMALL_BOXES) - len(kept)
    assert built.counts()["corrections"].get("small_object_dropped", 0) == dropped
    # A box of an object that is left out is not clipped.
    assert built.counts()["corrections"].get("box_clipped", 0) == ("cut" in kept)


def test_labels_of_images(tmp_path: Path) -> None:
    source = make_folders(tmp_path / "in", {"cat": 2, "dog": 3, "bird": 4})
    labels = {"first_id": 1, "merge": {"pet": ["cat", "dog"]}, "exclude": ["bird"]}
    built = build_settings(source, folder=tmp_path, labels=labels)
    found = Counter(label for example in built.examples() for label in example.image_labels)
    assert found == {("pet", 1): 5}
    assert built.counts()["excluded"] == {"label_excluded": 4}


# unannotated


def test_unannotated(tmp_path: Path) -> None:
    source = make_coco(tmp_path / "in", {"cat": 1}, unannotated=3)
    kept = build_settings(source, folder=tmp_path, name="kept", unannotated="keep")
    assert (kept.counts()["examples"], kept.counts()["unannotated"]) == (4, 3)
    assert sum(example.boxes == [] for example in kept.examples()) == 3
    told = "more than half of the images of split 'train' have no annotations"
    assert any(text.startswith(told) for text in kept.summary["warnings"])
    dropped = build_settings(source, folder=tmp_path, name="dropped", unannotated="drop")
    assert [example.key for example in dropped.examples()] == ["all.jpg"]
    assert dropped.counts()["excluded"] == {"unannotated": 3}
    assert dropped.counts()["unannotated"] == 0
    assert not any(text.startswith(told) for text in dropped.summary["warnings"])

    left_out = build_settings(source, folder=tmp_path, name="left_out", unannotated="auto")
    assert left_out.examples() == dropped.examples()
    line = (
        "3 of 4 images of train are named by no row or annotation file and left out, such as "
        "unannotated_0.jpg, unannotated_1.jpg, unannotated_2.jpg"
    )
    assert dropped.summary["notes"] == [line]
    assert left_out.summary["notes"] == [f"{line}; --unannotated keep writes them as negatives"]
    line = "3 of 4 images of train have no annotations and are written as negatives"
    assert kept.summary["notes"] == [line]

    strict = {"splits": {"train": source}, "unannotated": "reject", "rejects": {"max_ratio": 1}}
    rejected = build_config(strict, folder=tmp_path, name="rejected")
    assert rejected.counts()["rejected"] == {"unannotated": 3}


def test_each_of_several_files_over_one_folder_has_its_own_images(tmp_path: Path) -> None:
    names = [f"{number}.jpg" for number in range(5)]
    write_files(tmp_path / "images", dict.fromkeys(names, JPEG))
    splits = {}
    for split, (first, *others) in (("train", names[:3]), ("val", names[3:])):
        images = {first: ({"bbox": [1, 1, 9, 9]},), **dict.fromkeys(others, ())}
        file = write_coco(tmp_path / f"{split}.json", coco_document(images))
        root = str(tmp_path / "images")
        splits[split] = {"format": "coco", "images": root, "annotations": [str(file)]}
    built = build_config({"splits": splits}, folder=tmp_path)
    written = {split: sorted(built.by_key(split)) for split in splits}
    assert written == {"train": names[:3], "val": names[3:]}
    assert built.counts("val")["excluded"] == {"unannotated": 3}


def test_a_file_without_the_section_of_annotations_is_warned_of(tmp_path: Path) -> None:
    source = make_coco(tmp_path / "in", {"cat": 1})
    path = tmp_path / "in" / "instances.json"
    document = json.loads(path.read_text())
    del document["annotations"]
    path.write_text(json.dumps(document))
    config: Json = {"splits": {"train": source}}
    built = build_config(config, folder=tmp_path)
    warning, *_ = built.summary["warnings"]
    assert warning.startswith("instances.json has no section `annotations`: ")
    # As it says.
    assert "expect.max_unannotated" in warning
    strict = {**config, "expect": {"max_unannotated": 0.5}}
    build_config(strict, folder=tmp_path, name="strict", exit_code=3)


# seed, fractions, group_by, splits


def order(built: Build) -> dict[str, list[str]]:
    return {
        split: [example.key for example in built.examples(split)]
        for split in built.summary["splits"]
    }


@pytest.mark.parametrize(
    ("count", "fractions", "sizes"),
    [
        (100, {"train": 0.7, "validation": 0.2, "test": 0.1}, [70, 20, 10]),
        (7, {"train": 0.5, "test": 0.5}, [4, 3]),
    ],
)
def test_exact_sizes_are_those_of_all_records(
    tmp_path: Path, count: int, fractions: dict[str, float], sizes: list[int]
) -> None:
    source = make_folders(tmp_path / "in", {"cat": count})
    # Excluded and rejected before there is a record, and rejected when it is read.
    (tmp_path / "in" / "cat" / "notes.txt").write_bytes(b"")
    (tmp_path / "in" / "stray.jpg").write_bytes(JPEG)
    (tmp_path / "in" / "cat" / "000.jpg").write_bytes(JPEG[:200])
    config: Json = {"source": source, "fractions": fractions, "rejects": {"max_ratio": 1}}
    built = build_config({**config, "exact": True}, folder=tmp_path)
    counts = [built.counts(split) for split in fractions]
    lost = [
        sum(split["rejected"].values()) - split["rejected"].get("no_class_folder", 0)
        for split in counts
    ]
    assert [split["examples"] + more for split, more in zip(counts, lost, strict=True)] == sizes
    assert sum(split["listed"] for split in counts) == count + 2
    about = set(order(build_config(config, folder=tmp_path, name="about"))["train"])
    # Where it ends moves, and nothing else.
    train = set(order(built)["train"])
    assert train <= about or about <= train


def test_stratified_splits_share_out_each_class(tmp_path: Path) -> None:
    fractions = {"train": 0.8, "test": 0.2}
    source = make_folders(tmp_path / "in", {"cat": 30, "dog": 16, "eel": 5, "fox": 5})
    # One key each: the second file is a reject of the split of the first.
    for name in (
        "a\u0301",
        "\u00e1",
        "e\u0301",
        "\u00e9",
        "i\u0301",
        "\u00ed",
        "o\u0301",
        "\u00f3",
    ):
        (tmp_path / "in" / "dog" / f"{name}.jpg").write_bytes(JPEG)
    # They become no records, and are in no stratum.
    (tmp_path / "in" / "stray.jpg").write_bytes(JPEG)
    (tmp_path / "in" / "cat" / "notes.txt").write_bytes(b"")
    config: Json = {"source": source, "fractions": fractions, "rejects": {"max_ratio": 1}}
    built = build_config({**config, "stratify": True}, folder=tmp_path)
    found = {
        split: Counter(key.partition("/")[0] for key in keys)
        for split, keys in order(built).items()
    }
    assert found == {
        "train": {"cat": 24, "dog": 16, "eel": 4, "fox": 4},
        "test": {"cat": 6, "dog": 4, "eel": 1, "fox": 1},
    }
    assert Counter(reason for _, reason in built.reasons()) == {
        "no_class_folder": 1,
        "duplicate_key": 4,
    }


def test_images_of_objects_are_stratified_by_their_rarest_class(tmp_path: Path) -> None:
    rows = ["image,xmin,ymin,xmax,ymax,class"]
    images = [("cat",)] * 20 + [("cat", "dog")] * 10 + [()] * 5
    (tmp_path / "in").mkdir()
    for number, names in enumerate(images):
        (tmp_path / "in" / f"{number}.jpg").write_bytes(JPEG)
        rows += [f"{number}.jpg,1,1,9,9,{name}" for name in names]
    rows.append("10.jpg,1,,9,9,cat")
    (tmp_path / "t.csv").write_text("\n".join(rows))
    source = {
        "format": "csv",
        "manifest": [str(tmp_path / "t.csv")],
        "image_root": [str(tmp_path / "in")],
    }
    config = {"source": source, "fractions": {"a": 0.8, "b": 0.2}, "rejects": {"max_ratio": 1}}
    built = build_config({**config, "stratify": True, "unannotated": "keep"}, folder=tmp_path)
    found = Counter(
        (split, images[int(key.partition(".")[0])])
        for split, keys in order(built).items()
        for key in keys
    )
    assert [found["b", names] for names in (("cat", "dog"), ())] == [2, 1]
    assert [built.counts(split)["examples"] for split in "ab"] == [27, 7]
    assert built.reasons() == {("10.jpg", "annotation_malformed"): 1}


def test_group_by_keeps_groups_in_one_split(tmp_path: Path) -> None:
    (tmp_path / "in" / "cat").mkdir(parents=True)
    for video, frame in itertools.product(range(12), range(5)):
        (tmp_path / "in" / "cat" / f"video{video}_frame{frame}.jpg").write_bytes(JPEG)
    (tmp_path / "in" / "cat" / "still.jpg").write_bytes(JPEG)
    source = {"format": "image-folder", "images": str(tmp_path / "in")}
    config: Json = {
        "source": source,
        "fractions": {"train": 0.5, "test": 0.5},
        "rejects": {"max_ratio": 0.1},
    }
    splits: dict[str, dict[str, set[str]]] = {}
    by_group = {"group_by": r"(video\d+)_"}
    for name, group_by in (
        ("grouped", by_group),
        ("uneven", {**by_group, "exact": True, "fractions": {"train": 0.8, "test": 0.2}}),
        ("single", {}),
    ):
        built = build_config({**config, **group_by}, folder=tmp_path, name=name)
        splits[name] = {}
        for split, keys in order(built).items():
            for key in keys:
                splits[name].setdefault(key.partition("_")[0], set()).add(split)
        told = [text for text in built.summary["warnings"] if "groups (group_by)" in text]
        assert bool(told) is (name == "uneven")
        rejects = {("cat/still.jpg", "group_not_matched"): 1} if group_by else {}
        assert built.reasons() == rejects
    assert all(len(found) == 1 for found in splits["grouped"].values())
    assert len(splits["grouped"]) == 12
    # Nine groups of five are 45 images.
    assert Counter(split for (split,) in splits["uneven"].values()) == {"train": 9, "test": 3}
    assert any(len(found) == 2 for found in splits["single"].values())


def test_splits_may_hold_the_same_keys(tmp_path: Path) -> None:
    splits = {
        "train": make_coco(tmp_path / "one", {"cat": 1}),
        "validation": make_coco(tmp_path / "other", {"cat": 1}, unannotated=1),
    }
    other = save(photograph(seed=5), "JPEG")
    (tmp_path / "other" / "images" / "all.jpg").write_bytes(other)
    built = build_config({"splits": splits, "unannotated": "keep"}, folder=tmp_path)
    assert {key: one.encoded for key, one in built.by_key("train").items()} == {"all.jpg": JPEG}
    assert {key: one.encoded for key, one in built.by_key("validation").items()} == {
        "all.jpg": other,
        "unannotated_0.jpg": JPEG,
    }
