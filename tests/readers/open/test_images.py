"""Examples read back as pictures: of our datasets, of others, and of contradictory ones."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from unittest import mock

import pytest

from shardbeam.readers.open.images import (
    PlacedExamples,
    read_images,
    read_with_places,
)
from shardbeam.readers.open.stored_dataset import open_dataset, read_feature_map
from shardbeam.transforms.containers.tfrecord import TFRecord
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.labels import LabelMap, written_skeletons
from shardbeam.transforms.core.records import Category
from shardbeam.transforms.examples.decode.decode import make_picture
from shardbeam.transforms.examples.decode.feature_map import FeatureMap
from shardbeam.transforms.examples.decode.picture import Picture, PictureObject
from shardbeam.transforms.examples.example_pb2 import Example
from shardbeam.transforms.storage.base import StoredFile
from tests.support.builds import Build, build_config, write_coco
from tests.support.screens import check_screen
from tests.support.tfrecords import draw_image, make_example, write_tfrecord

BOX: dict[str, object] = {
    "image/object/bbox/xmin": [0.25],
    "image/object/bbox/ymin": [0.5],
    "image/object/bbox/xmax": [0.75],
    "image/object/bbox/ymax": [1.0],
}
TWO_BOXES: dict[str, object] = {key: [0.25, 0.5] for key in BOX}


def read(features: Mapping[str, object], *, feature_map: FeatureMap | None = None) -> Picture:
    example = Example.FromString(make_example(features))
    return make_picture(
        example, feature_map=feature_map or FeatureMap(), split="train", shard="a", number=1
    )


def read_all(path: Path, *, split: str, first: int = 1) -> list[Picture]:
    dataset = open_dataset(str(path))
    feature_map = read_feature_map(dataset)
    return list(read_images(dataset.find_split(split), feature_map=feature_map, first=first))


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Four images with a person each, keys renamed and dropped, names of classes not written."""
    folder = tmp_path_factory.mktemp("people")
    images = folder / "images"
    images.mkdir()
    for number in range(4):
        (images / f"{number}.jpg").write_bytes(draw_image("JPEG", width=20 + number, height=10))
    person = {
        "id": 7,
        "name": "person",
        "keypoints": ["nose", "left eye", "right eye"],
        "skeleton": [[1, 2], [1, 3], [9, 1]],
    }
    write_coco(
        folder / "people.json",
        {
            "images": [{"id": number, "file_name": f"{number}.jpg"} for number in range(4)],
            "categories": [{"id": 3, "name": "dog"}, person],
            "annotations": [
                {
                    "id": 10 + number,
                    "image_id": number,
                    "category_id": 7,
                    "bbox": [5, 5, 10, 5],
                    "keypoints": [5, 5, 2, 10, 5, 1, 0, 0, 0],
                    "iscrowd": 0,
                }
                for number in range(4)
            ],
        },
    )
    source = {
        "format": "coco",
        "images": str(images),
        "annotations": [str(folder / "people.json")],
    }
    return build_config(
        {
            "splits": {"train": source},
            "output": {"num_shards": 2},
            "features": {
                "rename": {"image/encoded": "picture", "image/object/bbox/xmin": "left"},
                "drop": ["image/object/class/text", "image/format"],
                "constants": {"image/format": "nonsense"},
            },
        },
        folder=folder,
    )


def test_a_dataset_of_ours_is_read_by_its_manifest(people: Build) -> None:
    pictures = read_all(people.output, split="train")
    assert sorted(picture.key for picture in pictures) == ["0.jpg", "1.jpg", "2.jpg", "3.jpg"]
    assert [picture.number for picture in pictures] == [1, 2, 3, 4]
    for picture in pictures:
        number = int(picture.key[0])
        assert (picture.format, picture.width, picture.height) == ("jpeg", 20 + number, 10)
        assert picture.image == picture.features["picture"][0]
        assert picture.problems == ()
        (person,) = picture.objects
        assert (person.label, person.label_id, person.is_crowd) == ("person", 7, False)
        assert person.box == pytest.approx((5 / picture.width, 0.5, 15 / picture.width, 1.0))
        assert person.skeleton == ((0, 1), (0, 2))
        assert [point[2] for point in person.keypoints] == [2, 1, 0]
        assert person.keypoints[1][:2] == pytest.approx((10 / picture.width, 0.5))
        assert person.attributes == {}


def test_reading_begins_anywhere(people: Build) -> None:
    keys = [picture.key for picture in read_all(people.output, split="train")]
    for first in range(1, 6):
        found = read_all(people.output, split="train", first=first)
        assert [(picture.number, picture.key) for picture in found] == list(enumerate(keys, 1))[
            first - 1 :
        ]


def test_shards_before_the_first_picture_are_not_read(people: Build, tmp_path: Path) -> None:
    dataset = open_dataset(str(people.output))
    split = dataset.find_split("train")
    before = split.shard_examples[0]
    path = Path(split.shards[0].uri)
    data = path.read_bytes()
    try:
        path.write_bytes(b"damaged" + data[7:])
        found = read_all(people.output, split="train", first=before + 1)
        assert [picture.number for picture in found] == list(range(before + 1, 5))
        with pytest.raises(InputError, match=split.shards[0].path):
            read_all(people.output, split="train", first=before)
    finally:
        path.write_bytes(data)


def test_one_shard_of_ours_is_read_by_the_manifest_beside_it(people: Build) -> None:
    shard = people.output / people.shards()[0]
    feature_map = read_feature_map(open_dataset(str(shard)))
    assert feature_map.is_ours
    assert feature_map.class_names == {3: "dog", 7: "person"}


@pytest.mark.parametrize(
    ("features", "keys"),
    [
        ([], {}),
        ({"rename": [1], "drop": {"a": 1}}, {}),
        ({"rename": {"a": 3, "b": ["c"], "c": "d"}}, {"a": "", "b": "", "c": "d"}),
        ({"drop": ["a", 3, ["b"], {}]}, {"a": ""}),
    ],
)
def test_what_is_no_text_in_a_changed_manifest_is_no_key(
    people: Build, tmp_path: Path, features: object, keys: Mapping[str, str]
) -> None:
    manifest = json.loads((people.output / "manifest.json").read_bytes())
    manifest["config"]["features"] = features
    for name in ("dataset_info.json", "features.json"):
        shutil.copy(people.output / name, tmp_path)
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    assert read_feature_map(open_dataset(str(tmp_path))).keys == keys


def test_a_manifest_of_anyones_is_none_of_ours(tmp_path: Path) -> None:
    path = write_tfrecord(tmp_path / "a.tfrecord", make_example({"x": 1}))
    (tmp_path / "manifest.json").write_text('{"version": 3}')
    assert read_feature_map(open_dataset(str(path))) == FeatureMap()


@pytest.mark.parametrize(
    ("name", "text", "names"),
    [
        ("labels.txt", "cat\n dog \n", {0: "cat", 1: "dog"}),
        (
            "label_map.pbtxt",
            'item {\n  name: \'/m/01\'\n id: 3 # id: 4\n display_name: "a \\"b\\" {\\303\\244}"\n}'
            'item{id:5 name:"x" keypoints { id: 9 label: "nose" } }',
            {3: 'a "b" {ä}', 5: "x"},
        ),
        ("label_map.pbtxt", 'item { name: "no id" } }} item { id: "7" } \' " item { id: 1', {}),
        ("label_map.pbtxt", f"item {{ id: {'9' * 5000} name: '\\x' }}", {10**19 - 1: "\\x"}),
        ("label_map.pbtxt", "\0\xff", {}),
    ],
)
def test_class_names_of_anyones(tmp_path: Path, name: str, text: str, names: object) -> None:
    features = {**BOX, "image/object/class/label": [3]}
    path = write_tfrecord(tmp_path / "a.tfrecord", make_example(features))
    (tmp_path / name).write_text(text, encoding="utf-8")
    for place in (tmp_path, path):
        assert read_feature_map(open_dataset(str(place))).class_names == names


LABEL, TEXT = "image/object/class/label", "image/object/class/text"
OF_ANNOTATION: dict[str, object] = {
    "image/encoded": draw_image("PNG", width=8, height=4),
    "annotation/bbox": [2.0, 1.0, 4.0, 3.0],
    "annotation/class/label": 2,
    "annotation/class/text": b"cat",
    "annotation/mask": b"mask",
    "annotation/is_crowd": 1,
    "annotation/area": 6.0,
}
SCENES: dict[str, Mapping[str, object]] = {
    "nothing": {},
    "a box": BOX,
    "a box without a side": {**BOX, "image/object/bbox/ymax": []},
    "too few sides": {**TWO_BOXES, "image/object/bbox/xmin": [0.125]},
    "a side that is no number": {**BOX, "image/object/bbox/xmin": [float("nan")]},
    "a side that is in pixels": {**BOX, "image/object/bbox/xmax": [300.0]},
    "a box that ends before it begins": {**BOX, "image/object/bbox/xmin": [0.875]},
    "a text for an id": {**BOX, LABEL: [b"cat"]},
    "too many names": {**TWO_BOXES, TEXT: [b"a", b"b", b"c"]},
    "a name that is no text": {**BOX, TEXT: [b"\xff"]},
    "an id with a name": {**BOX, LABEL: [5]},
    "classes without boxes": {LABEL: [5, 6]},
    "classes of the image": {"image/class/label": [5, 6]},
    "more ids than names": {"image/class/label": [5, 6], "image/class/text": [b"x"]},
    "attributes": {**BOX, "image/object/difficult": [1], "image/object/view": [b"left"]},
    "keypoints without y": {**TWO_BOXES, "image/object/keypoint/x": [0.5] * 3},
    "a keypoint that is nowhere": {
        **TWO_BOXES,
        "image/object/keypoint/x": [0.5, float("inf")],
        "image/object/keypoint/y": [0.25, 0.5],
        "image/object/keypoint/num": [1, 1],
    },
    "a GIF": {"image/encoded": b"GIF89a"},
    "no image file": {"image/encoded": b"text"},
    "pixels of CIFAR": {"image/encoded": b"\0" * 3072},
    "odd sizes": {"image/width": [-5], "image/height": [2**62]},
    "an id for a key": {"image/source_id": b"7"},
    "an annotation": OF_ANNOTATION,
    "an annotation with a part of a box": {**OF_ANNOTATION, "annotation/bbox": [2.0]},
}


def test_anyones_examples() -> None:
    """The screen has what differs from an empty picture, without the bytes of images."""
    shown = []
    for title, features in SCENES.items():
        picture = read(features, feature_map=FeatureMap(class_names={5: "five"}))
        shown.append(f"--- {title}")
        for part in (picture, *picture.objects):
            empty = type(part)() if isinstance(part, PictureObject) else Picture(key="")
            fields = {
                name: getattr(part, name)
                for name in part.__struct_fields__
                if name not in ("split", "shard", "image", "objects", "features")
                and getattr(part, name) != getattr(empty, name)
            }
            shown.append(f"{type(part).__name__}: {fields}")
    check_screen("pictures", "\n".join(shown))


def test_the_image_under_another_key_is_found_if_it_is_the_only_one() -> None:
    jpeg = draw_image("JPEG", width=8, height=4)
    assert read({"jpg": jpeg, "n": 1}).image == jpeg
    assert read({"left": jpeg, "right": jpeg}).image == b""
    # Nothing is searched that the manifest declares missing.
    assert read({"jpg": jpeg}, feature_map=FeatureMap(is_ours=True)).image == b""


def test_a_size_that_is_not_the_images_is_told() -> None:
    jpeg = draw_image("JPEG", width=8, height=4)
    picture = read({"image/encoded": jpeg, "image/width": 4, "image/height": 8})
    assert (picture.width, picture.height) == (8, 4)
    assert picture.problems == ("the image is 8 x 4 pixels, but the Example says 4 x 8",)


def test_maps() -> None:
    semantic = read({"image/segmentation/class/encoded": b"classes"})
    assert (semantic.class_map, semantic.instance_map) == (b"classes", b"")
    panoptic = read(
        {
            "image/segmentation/class/encoded": b"classes",
            "image/panoptic/category_mask": b"categories",
            "image/panoptic/instance_mask": b"segments",
        }
    )
    assert (panoptic.class_map, panoptic.instance_map) == (b"categories", b"segments")


def test_a_place_with_a_length_fetches_no_more(people: Build) -> None:
    split = open_dataset(str(people.output)).splits[0]
    stored = list(read_with_places(split))
    examples = PlacedExamples({split.name: split}, [each.place for each in stored])
    ends = []

    def read(container: TFRecord, file: StoredFile, *, start: int) -> Iterator[tuple[int, bytes]]:
        ends.append(file.size_bytes)
        return original(container, file, start=start)

    original = TFRecord.read
    with mock.patch.object(TFRecord, "read", read):
        for each in stored:
            assert examples.read(each.place) == each
    # A record has a head of 12 bytes and a tail of 4.
    assert ends == [each.place.offset + each.place.length + 16 for each in stored]
    with pytest.raises(InputError, match=r"the record has [\d,]+ bytes, and [\d,]+ in the index"):
        examples.read(stored[0].place._replace(length=stored[0].place.length + 1))
    with pytest.raises(InputError):
        examples.read(stored[0].place._replace(length=stored[0].place.length - 1))


def test_without_the_map_of_classes_a_panoptic_map_has_numbers() -> None:
    def names(config: Mapping[str, object]) -> Mapping[int, str]:
        feature_map = FeatureMap.of_manifest(
            config=config, labels={"dog": 1}, skeletons={}, numbered_maps=False
        )
        return feature_map.map_names()

    assert names({"features": {"drop": ["image/panoptic/instance_mask"]}}) == {1: "dog"}
    assert names({"features": {"drop": ["image/panoptic/category_mask"]}}) == {}


def test_skeletons_join_keypoints_where_they_are_written() -> None:
    label_map = LabelMap(
        ids={"animal": 1},
        names={"dog": "animal", "cat": "animal"},
        keypoints=("nose", "tail", "ear"),
        keypoint_columns={"dog": (0, 1), "cat": (2, 0), "cow": (0, 1)},
    )
    categories = [
        Category(name="cat", keypoints=("ear", "nose"), skeleton=((0, 1), (1, 2))),
        Category(name="dog", keypoints=("nose", "tail"), skeleton=((0, 1),)),
        Category(name="cow", skeleton=((0, 1),)),
    ]
    assert written_skeletons(categories, label_map=label_map) == {"animal": ((0, 1), (2, 0))}
