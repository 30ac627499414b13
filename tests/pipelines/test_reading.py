"""`load_dataset`, compared with parsing by hand and TFDS, and on other TFRecord files."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from shardbeam.transforms.containers.tfrecord import read_records
from shardbeam.transforms.core.errors import InputError
from tests.support.builds import Build, build, build_config
from tests.support.python_runs import run_python
from tests.support.tfrecords import draw_image, make_example, write_tfrecord

if TYPE_CHECKING:
    import tensorflow as tf

# TFDS's use of protobuf.
pytestmark = pytest.mark.filterwarnings(r"ignore:label\(\) is deprecated")

NUM_SHARDS = 3


def load(*arguments: object, **options: object) -> tf.data.Dataset:
    # TensorFlow's import takes seconds, which collecting tests need not pay.
    from shardbeam.readers.open import tf_data as reading

    load_dataset: Callable[..., tf.data.Dataset] = reading.load_dataset
    return load_dataset(*arguments, **options)


def read(*arguments: object, **options: object) -> list[dict[str, Any]]:
    return list(load(*arguments, **options).as_numpy_iterator())


def read_column(key: str, *arguments: object, **options: object) -> list[Any]:
    return [example[key] for example in read(*arguments, **options)]


@pytest.fixture(scope="module")
def coco(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Build:
    return build(
        *("coco", "--images", shapes / "images"),
        *("--annotations", shapes / "annotations" / "instances.json"),
        *("--set", f"output.num_shards={NUM_SHARDS}"),
        output=tmp_path_factory.mktemp("reading") / "coco",
    )


@pytest.fixture(scope="module")
def renamed(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Class folders with JPEGs and PNGs, gray and in colour, under keys of one's own."""
    folder = tmp_path_factory.mktemp("renamed")
    for name, file_format, mode in (
        ("a/1.jpg", "JPEG", "RGB"),
        ("a/2.jpg", "JPEG", "L"),
        ("b/3.png", "PNG", "RGB"),
        ("b/4.png", "PNG", "L"),
    ):
        path = folder / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(draw_image(file_format, width=30 + len(mode), height=20, mode=mode))
    features = {
        "rename": {"image/encoded": "train/image", "image/class/text": "train/label"},
        "drop": ["image/class/label", "image/source_id", "image/key/sha256"],
        "constants": {"origin": "camera", "gain": 0.5, "sizes": [1, 2, 3], "run": 7},
    }
    source = {"format": "image-folder", "images": str(folder / "images")}
    return build_config({"splits": {"train": source}, "features": features}, folder=folder)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="TFDS cannot be installed beside Beam")
@pytest.mark.parametrize("name", ["coco", "renamed"])
def test_it_equals_tfds_in_the_same_order(name: str, request: pytest.FixtureRequest) -> None:
    import tensorflow_datasets as tfds

    output = request.getfixturevalue(name).output
    expected = list(tfds.as_numpy(tfds.builder_from_directory(str(output)).as_dataset("train")))
    found = read(output)
    assert len(found) == len(expected) > 0
    for example, other in zip(found, expected, strict=True):
        assert example.keys() == other.keys()
        for key, value in other.items():
            np.testing.assert_array_equal(example[key], value, err_msg=key)


def test_renamed_dropped_and_constant_keys(renamed: Build) -> None:
    found = read(renamed.output)
    written = {example.features["image/filename"][0]: example for example in renamed.examples()}
    assert len(found) == len(written) == 4
    for example in found:
        features = written[example["image/filename"]].features
        assert example.keys() == features.keys()
        assert [example["train/label"]] == features["train/label"]
        assert (example["origin"], example["gain"], example["run"]) == (b"camera", 0.5, 7)
        assert example["sizes"].tolist() == [1, 2, 3]
        shape = (features["image/height"][0], features["image/width"][0], 3)
        assert (example["train/image"].shape, example["train/image"].dtype) == (shape, np.uint8)
        gray = example["image/filename"] in (b"a/2.jpg", b"b/4.png")
        assert (example["train/image"] == example["train/image"][:, :, :1]).all() == gray


def test_images_stay_encoded_on_request(renamed: Build) -> None:
    found = read_column("train/image", renamed.output, decode_images=False)
    written = [example.features["train/image"][0] for example in renamed.examples()]
    assert sorted(found) == sorted(written)


def test_what_a_model_needs_is_known_beforehand(coco: Build) -> None:
    import tensorflow as tf

    dataset = load(coco.output)
    assert dataset.cardinality() == coco.counts()["examples"]
    spec = dataset.element_spec
    assert spec["image/encoded"] == tf.TensorSpec([None, None, 3], tf.uint8)
    assert spec["image/height"] == tf.TensorSpec([], tf.int64)
    assert spec["image/object/area"] == tf.TensorSpec([None], tf.float32)
    assert spec["image/object/class/text"] == tf.TensorSpec([None], tf.string)


def test_batches(coco: Build, renamed: Build) -> None:
    import tensorflow as tf

    key = "image/object/class/label"
    rows = read_column(key, coco.output)
    ragged = [batch[key] for batch in load(coco.output).ragged_batch(8)]
    assert all(isinstance(batch, tf.RaggedTensor) for batch in ragged)
    assert [row for batch in ragged for row in batch.to_list()] == [row.tolist() for row in rows]
    padded = np.concatenate([batch[key] for batch in load(coco.output).padded_batch(40)])
    assert padded.shape == (len(rows), max(map(len, rows)))
    assert [padded[i, : len(row)].tolist() for i, row in enumerate(rows)] == [
        row.tolist() for row in rows
    ]

    # Images of two sizes.
    (batch,) = load(renamed.output).ragged_batch(4)
    assert batch["train/image"].shape.as_list() == [4, None, None, 3]
    (batch,) = load(renamed.output).map(lambda each: each["run"]).batch(4)
    assert batch.numpy().tolist() == [7] * 4


@pytest.fixture
def numbered(tmp_path: Path) -> Path:
    """Ten files; the tens of `n` are the number of the file."""
    for index in range(10):
        records = [make_example({"n": 10 * index + i}) for i in range(3)]
        write_tfrecord(tmp_path / f"train-{index:05}-of-00010.tfrecord", *records)
    return tmp_path


def test_the_order(numbered: Path) -> None:
    in_order = [10 * index + i for index in range(10) for i in range(3)]
    assert read_column("n", numbered) == in_order
    assert read_column("n", numbered, interleave=1) == in_order

    def shuffled(seed: int | None) -> list[int]:
        return read_column("n", numbered, shuffle_files=True, seed=seed)

    assert shuffled(1) == shuffled(1) != in_order
    assert shuffled(1) != shuffled(2)
    assert sorted(shuffled(1)) == sorted(shuffled(None)) == in_order
    dataset = load(numbered, shuffle_files=True, seed=1)
    epochs = [[each["n"] for each in dataset.as_numpy_iterator()] for _ in range(2)]
    assert epochs[0] != epochs[1]
    again = load(numbered, shuffle_files=True, seed=1).repeat(2).as_numpy_iterator()
    assert [each["n"] for each in again] == epochs[0] + epochs[1]


def test_files_take_turns(tmp_path: Path) -> None:
    for name in "ab":
        records = [make_example({"file": name.encode()}) for _ in range(20)]
        write_tfrecord(tmp_path / f"{name}.record", *records)
    files = sorted(tmp_path.iterdir())
    assert b"".join(read_column("file", files)) == b"a" * 16 + b"b" * 16 + b"a" * 4 + b"b" * 4
    assert b"".join(read_column("file", files, interleave=1)) == b"a" * 20 + b"b" * 20
    assert b"".join(read_column("file", files[::-1], interleave=1)) == b"b" * 20 + b"a" * 20


def test_a_shard_that_lacks_examples_is_an_error(coco: Build, tmp_path: Path) -> None:
    import tensorflow as tf

    folder = tmp_path / "out"
    shutil.copytree(coco.output, folder)
    path = folder / coco.shards()[0]
    with path.open("rb") as file:
        records = list(read_records(file))
    write_tfrecord(path, *records[:-1])
    count = coco.counts()["examples"]
    message = f"expected to contain {count} elements but contained only {count - 1}"
    with pytest.raises(tf.errors.FailedPreconditionError, match=message):
        read(folder)


def test_third_party_files(shared_data: Path) -> None:
    folder = shared_data / "datumaro" / "tf_detection_api_dataset"
    specs = [load(folder, split=split).element_spec for split in ("train", "val", "test")]
    assert specs[0] == specs[1] == specs[2]
    (example,) = read(folder, split="train")
    assert example["image/encoded"].shape == (16, 16, 3)
    assert (example["image/filename"], example["image/height"]) == (b"1.jpg", 16)
    assert example["image/object/bbox/xmax"].tolist() == [0.25, 0.25, 0.375]
    assert example["image/object/class/text"].tolist() == [b"label_2", b"label_3", b""]
    # The keys of objects are missing from this file.
    (example,) = read(folder, split="test")
    assert example["image/object/bbox/xmax"].tolist() == []

    names = [b"3.jpg", b"1.jpg", b"2.jpg"]
    assert read_column("image/filename", f"{folder}/*.tfrecord") == names
    files = [folder / name for name in ("val.tfrecord", "train.tfrecord")]
    assert read_column("image/filename", files) == [b"2.jpg", b"1.jpg"]
    assert read_column("image/filename", str(files[0])) == [b"2.jpg"]


JPEG = draw_image("JPEG", width=8, height=6)
PNG = draw_image("PNG", width=9, height=7)
GRAY_PNG = draw_image("PNG", width=5, height=4, mode="L")
WEBP = draw_image("WEBP", width=4, height=4)
GRAY_JPEG = draw_image("JPEG", width=3, height=2, mode="L")


def read_records_of(folder: Path, *features: dict[str, Any]) -> list[dict[str, Any]]:
    return read(write_tfrecord(folder / "x.record", *map(make_example, features)))


def test_inferred_kinds(tmp_path: Path) -> None:
    first, second = read_records_of(
        tmp_path,
        {"i": 1, "f": 0.5, "b": b"x", "several": [1, 2], "varying": [0.5], "optional": 1, "no": []},
        {"i": 2, "f": 1.5, "b": b"", "several": [3, 4], "varying": [], "no": []},
    )
    assert first.keys() == {"i", "f", "b", "several", "varying", "optional"}
    assert [(each["i"], each["f"], each["b"]) for each in (first, second)] == [
        (1, 0.5, b"x"),
        (2, 1.5, b""),
    ]
    assert [each["several"].tolist() for each in (first, second)] == [[1, 2], [3, 4]]
    assert [each["varying"].tolist() for each in (first, second)] == [[0.5], []]
    assert [each["optional"].tolist() for each in (first, second)] == [[1], []]


@pytest.mark.parametrize(
    ("images", "shapes"),
    [
        ([JPEG, PNG], [(6, 8, 3), (7, 9, 3)]),
        ([GRAY_PNG, GRAY_JPEG], [(4, 5, 1), (2, 3, 1)]),
        ([GRAY_PNG, JPEG], [(4, 5, 3), (6, 8, 3)]),
    ],
)
def test_inferred_images(images: list[bytes], shapes: list[Any], tmp_path: Path) -> None:
    found = read_records_of(tmp_path, *({"image": image} for image in images))
    assert [example["image"].shape for example in found] == shapes
    assert {example["image"].dtype for example in found} == {np.dtype(np.uint8)}


@pytest.mark.parametrize(
    "values",
    [[JPEG, b"raw pixels"], [b"", JPEG], [[PNG, PNG], [PNG]], [WEBP]],
)
def test_what_is_not_always_an_image_stays_encoded(values: list[Any], tmp_path: Path) -> None:
    found = read_records_of(tmp_path, *({"image": value} for value in values))
    flat = [np.asarray(example["image"], dtype=object).tolist() for example in found]
    assert flat == values


def test_a_sample_of_many_files(tmp_path: Path) -> None:
    files = []
    for index in range(200):
        value = [1.5] if index < 100 else [1.5, 2.5]
        path = tmp_path / f"{index:03}.record"
        files.append(write_tfrecord(path, make_example({"x": value})))
    assert [row.tolist() for row in read_column("x", files)] == [[1.5]] * 100 + [[1.5, 2.5]] * 100


def test_kinds_that_contradict_each_other(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"x\.record: 'a' is a list of float values here, and of"):
        read_records_of(tmp_path, {"a": 1}, {"a": 1.5})


@pytest.mark.parametrize(
    ("usual", "odd", "message"),
    [
        (1, 1.5, r"Key: a\..*Data types don't match"),
        (1, [1, 2], r"Key: a\."),
        ([1, 2], b"x", r"Key: a\..*Data types don't match"),
        (JPEG, WEBP, "a: neither JPEG nor PNG"),
        (JPEG, b"", "a: neither JPEG nor PNG"),
        (JPEG, JPEG[:100], "(?i)jpeg"),
    ],
)
def test_a_record_that_does_not_fit(
    usual: object, odd: object, message: str, tmp_path: Path
) -> None:
    import tensorflow as tf

    records = [make_example({"a": usual})] * 64 + [make_example({"a": odd})]
    examples = load(write_tfrecord(tmp_path / "x.record", *records)).as_numpy_iterator()
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"(?s){message}"):
        list(examples)


def write_metadata(folder: Path, features: dict[str, Any], *, name: str = "FeaturesDict") -> None:
    info = {"name": "d", "splits": [{"name": "train", "shardLengths": ["1"]}]}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    root = {"pythonClassName": name, "featuresDict": {"features": features}}
    (folder / "features.json").write_text(json.dumps(root))


def node(**content: object) -> dict[str, Any]:
    return {"pythonClassName": "tensorflow_datasets.core.features.x.Y", **content}


def test_features_of_a_dataset_by_tfds(tmp_path: Path) -> None:
    vector = node(tensor={"dtype": "float32", "shape": {"dimensions": ["2"]}, "encoding": "none"})
    image = {"dtype": "uint8", "shape": {"dimensions": ["4", "5", "1"]}, "encodingFormat": "png"}
    write_metadata(
        tmp_path,
        {
            "image": node(image=image),
            "flag": node(tensor={"dtype": "bool", "shape": {}, "encoding": "none"}),
            "vector": vector,
            "vectors": node(sequence={"feature": vector, "length": "-1"}),
        },
    )
    features = {"image": GRAY_PNG, "flag": 1, "vector": [1.0, 2.0], "vectors": [1.0, 2.0, 3.0, 4.0]}
    write_tfrecord(tmp_path / "d-train.tfrecord-00000-of-00001", make_example(features))
    dataset = load(tmp_path)
    assert dataset.element_spec["image"].shape == (4, 5, 1)
    (example,) = dataset.as_numpy_iterator()
    assert example["vector"].tolist() == [1.0, 2.0]
    assert example["vectors"].tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert example["flag"] == 1


@pytest.mark.parametrize(
    "feature",
    [
        node(),
        node(video={}),
        node(image={"dtype": "float32", "shape": {"dimensions": ["-1", "-1", "1"]}}),
        node(tensor={"dtype": "int64", "shape": {}, "encoding": "zlib"}),
        node(tensor={"dtype": "complex64", "shape": {}}),
        node(tensor={"dtype": "int64", "shape": {"dimensions": ["-1", "2"]}}),
        node(sequence={"feature": node(sequence={"feature": node(text={})})}),
    ],
)
def test_features_that_only_tfds_decodes(feature: dict[str, Any], tmp_path: Path) -> None:
    write_metadata(tmp_path, {"odd": feature})
    write_tfrecord(tmp_path / "d-train.tfrecord-00000-of-00001", make_example({"odd": 1}))
    with pytest.raises(
        InputError,
        match=r"features\.json: odd: only TFDS can decode tensorflow_datasets.*builder_from",
    ):
        load(tmp_path)


def test_damaged_metadata(tmp_path: Path) -> None:
    write_metadata(tmp_path, {})
    write_tfrecord(tmp_path / "d-train.tfrecord-00000-of-00001", make_example({"n": 1}))
    for content in (b"", b"[]", b"\xff", b"[" * 100_000):
        (tmp_path / "features.json").write_bytes(content)
        with pytest.raises(InputError, match=r"features\.json: not the features of a dataset: "):
            load(tmp_path)
    (tmp_path / "features.json").unlink()
    assert read_column("n", tmp_path) == [1]


def test_without_features_there_is_nothing_to_read(tmp_path: Path) -> None:
    write_metadata(tmp_path, {})
    write_tfrecord(tmp_path / "d-train.tfrecord-00000-of-00001", make_example({"n": 1}))
    with pytest.raises(InputError, match=r"features\.json: the dataset has no features"):
        load(tmp_path)


def test_without_tensorflow_the_extra_is_named() -> None:
    code = "import sys; sys.modules['tensorflow'] = None; import shardbeam.readers.open.tf_data"
    result = run_python(code)
    assert result.returncode == 1
    assert result.stderr.rstrip().endswith("needs TensorFlow: pip install 'tensorflow>=2.20'")


def test_wrong_calls(numbered: Path, tmp_path: Path) -> None:
    write_tfrecord(tmp_path / "test.tfrecord", make_example({"n": 1}))
    files = list(numbered.glob("train-*"))
    missing = str(tmp_path / "missing*")
    empty = write_tfrecord(tmp_path / "empty.bin")
    valueless = write_tfrecord(tmp_path / "valueless.bin", make_example({"a": []}))
    text = tmp_path / "text.bin"
    text.write_text("no TFRecord file")
    calls: list[tuple[object, dict[str, object], type[Exception], str]] = [
        (numbered, {}, InputError, r"several splits \(test, train\); name one"),
        (numbered, {"split": "tset"}, InputError, "no split 'tset'; did you mean 'test'"),
        (missing, {}, InputError, "nothing is there"),
        ([missing], {}, InputError, "no such file"),
        ([tmp_path], {}, InputError, "a folder; only regular files are read"),
        ([], {}, ValueError, "at least one file"),
        (files, {"split": "train"}, ValueError, "files have no splits"),
        (files, {"interleave": 0}, ValueError, "interleave must be 1 or more, not 0"),
        (empty, {}, InputError, "no records to infer the features from"),
        (valueless, {}, InputError, "no values in its records to infer the features from"),
        (text, {}, InputError, "byte 0: not a TFRecord file"),
        ("scheme://bucket/data", {}, InputError, "scheme://"),
    ]
    for path, options, error, message in calls:
        with pytest.raises(error, match=message):
            load(path, **options)
    files[0].unlink()
    with pytest.raises(InputError, match=f"split 'train': {files[0].name} is missing"):
        load(numbered, split="train")
