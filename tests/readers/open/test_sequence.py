"""`shardbeam.open` on disk: any order, any process, any damage."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import pickle
import random
import shutil
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

import shardbeam
from shardbeam.readers.open import pixels as pixels_module
from shardbeam.readers.open import shard_cache as files_module
from shardbeam.readers.open.arguments import Where
from shardbeam.readers.open.items import Item
from shardbeam.readers.open.sequence import ExampleSequence
from shardbeam.transforms.core.errors import DamagedError, InputError
from tests.support.builds import Build, build, build_config, build_shapes
from tests.support.dataset import run
from tests.support.image_makers import pixels as decode_pixels
from tests.support.image_makers import plain_jpeg, save
from tests.support.manifests import list_again
from tests.support.map_files import (
    CLASSES,
    MAPPED,
    panoptic_words,
    write_maps,
    write_numbered_maps,
)
from tests.support.screens import check_screen
from tests.support.tfrecords import draw_image, make_example, tfrecord, write_tfrecord

SHARDS = 7
NAN = float("nan")


@pytest.fixture(scope="module")
def coco(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Build:
    output = tmp_path_factory.mktemp("coco") / "out"
    flags = ("--set", f"output.num_shards={SHARDS}", "--set", "masks=png")
    return build_shapes(shapes, *flags, output=output)


@pytest.fixture
def copied(coco: Build, tmp_path: Path) -> Path:
    """A dataset that a test may damage."""
    return Path(shutil.copytree(coco.output, tmp_path / "copied"))


def plain(item: Item) -> dict[str, list[Any]]:
    """The values of an item as lists."""
    return {
        key: value.tolist()
        if isinstance(value, np.ndarray)
        else (value if isinstance(value, list) else [value])
        for key, value in item.items()
    }


def parse_frames(data: bytes) -> Iterator[bytes]:
    """An independent reader of TFRecords ("TFRecords format details" in TensorFlow's guide)."""
    position = 0
    while position < len(data):
        (length,) = struct.unpack_from("<Q", data, position)
        yield data[position + 12 : position + 12 + length]
        position += length + 16


# Any order


def test_it_is_the_examples_in_any_order(coco: Build) -> None:
    written = [example.features for example in coco.examples()]
    dataset = shardbeam.open(coco.output)
    assert len(dataset) == len(written) == 40
    assert [plain(item) for item in dataset] == written
    rng = random.Random(0)
    for number in rng.sample(range(-40, 40), 40):
        assert plain(dataset[number]) == written[number]
    assert plain(dataset[np.int64(3)]) == written[3]
    chosen = [5, -1, 5, 0]
    for indexes in (chosen, tuple(chosen), np.array(chosen)):
        assert [plain(item) for item in dataset[indexes]] == [written[i] for i in chosen]
        # What PyTorch and Grain call.
        for fetched in (dataset.__getitems__(indexes), dataset._getitems(indexes)):
            assert [plain(item) for item in fetched] == [written[i] for i in chosen]
    for number in (40, -41):
        with pytest.raises(IndexError):
            _ = dataset[number]
    with pytest.raises(TypeError):
        _ = dataset["image/encoded"]  # type: ignore[index]


class Tensor:
    """What matters of PyTorch's tensors: one with a single element is an index, also a boolean."""

    def __init__(self, values: Any) -> None:  # noqa: ANN401
        self.values = np.array(values)

    @property
    def ndim(self) -> int:
        return self.values.ndim

    @property
    def dtype(self) -> str:
        return f"torch.{self.values.dtype}"

    def __array__(self, *_: object, **__: object) -> Any:  # noqa: ANN401
        return self.values

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Any]:
        return (Tensor(value) for value in self.values)

    def __index__(self) -> int:
        if self.values.size != 1 or self.values.dtype.kind not in "biu":
            raise TypeError("only integer tensors of a single element can be converted to an index")
        return int(self.values.item())


@pytest.fixture(params=["all", "chosen"])
def both(request: pytest.FixtureRequest, coco: Build) -> ExampleSequence[Item]:
    """A sequence whose selection is a range, or an array."""
    where: Where = {} if request.param == "all" else {"min_objects": 2}
    return shardbeam.open(coco.output, where=where)


@pytest.mark.parametrize("kind", [np.array, Tensor])
def test_masks_and_arrays_choose_items(
    kind: Callable[[Any], Any], both: ExampleSequence[Item]
) -> None:
    keys = [item["image/filename"] for item in both]
    chosen = [key for number, key in enumerate(keys) if number % 3 == 1]
    mask = kind([number % 3 == 1 for number in range(len(keys))])
    indexes: Any = kind([number for number in range(len(keys)) if number % 3 == 1])
    for each in (mask, indexes, list(indexes)):
        assert [item["image/filename"] for item in both[each]] == chosen
        assert [item["image/filename"] for item in both.__getitems__(each)] == chosen
    assert both[kind([False] * len(keys))] == both[kind([])] == []
    assert [item["image/filename"] for item in both[kind([True] * len(keys))]] == keys
    assert both[:1][kind([True])][0]["image/filename"] == keys[0]
    assert both[kind(2)]["image/filename"] == keys[2]
    with pytest.raises(IndexError, match=r"a mask of the shape \(1, 1\) for a sequence of"):
        _ = both[kind([[True]])]
    for length in (1, 2, len(keys) + 1):
        with pytest.raises(
            IndexError, match=rf"a mask of the shape \({length},\) for a sequence of"
        ):
            _ = both[kind([True] * length)]


@pytest.mark.parametrize(
    "index",
    [
        *(True, False, [True, False], (1, True), [0, 1.0], [None], ["a"], "image/encoded", None),
        *(1.0, float("nan"), ..., {1, 2}, b"ab", [[1, 2]], np.bool_(True), [np.bool_(True)]),
        *(np.array(True), np.array(1.0), np.array([1.0]), np.array([[1]]), np.array(["a"])),
        *(Tensor(True), [Tensor(False)], Tensor([1.0]), Tensor([[1]])),
    ],
)
def test_what_is_no_index(index: Any, both: ExampleSequence[Item]) -> None:  # noqa: ANN401
    with pytest.raises(TypeError, match="expected an integer, a slice, a list of integers, or"):
        _ = both[index]


@pytest.mark.parametrize("index", [41, 2**63, -(2**70), [2**63], [0, -(2**70)], np.uint64(2**63)])
def test_huge_indexes(index: Any, both: ExampleSequence[Item]) -> None:  # noqa: ANN401
    with pytest.raises(IndexError, match=r"no item -?\d+ in a sequence of \d\d"):
        _ = both[index]


def test_slices_are_sequences(coco: Build) -> None:
    dataset = shardbeam.open(coco.output)
    keys = [item["image/filename"] for item in dataset]
    for part in (slice(3, 20), slice(None, None, -2), slice(-5, None), slice(50, 60)):
        sliced = dataset[part]
        assert isinstance(sliced, ExampleSequence)
        assert len(sliced) == len(keys[part])
        assert [item["image/filename"] for item in sliced] == keys[part]
    nested = dataset[::3][2:9][::-1]
    assert [nested[i]["image/filename"] for i in range(7)] == keys[::3][2:9][::-1]


def test_items_have_the_features_that_were_asked_for(coco: Build) -> None:
    keys = ["image/object/bbox/xmin", "image/height", "image/object/class/text"]
    whole = shardbeam.open(coco.output)
    dataset = shardbeam.open(coco.output, features=keys)
    for item, full in zip(pickle.loads(pickle.dumps(dataset)), whole, strict=True):
        assert list(item) == keys
        assert plain(item) == plain({key: full[key] for key in keys})
    # The other forms find what they need.
    assert dataset.detection()[0][1]["boxes"].shape == whole.detection()[0][1]["boxes"].shape
    with pytest.raises(InputError, match="no 'image/encode'; did you mean 'image/encoded'"):
        shardbeam.open(coco.output, features=["image/encode"])


def test_types_of_values(coco: Build) -> None:
    item = shardbeam.open(coco.output)[0]
    assert isinstance(item["image/encoded"], bytes)
    assert (item["image/format"], type(item["image/height"])) == (b"jpeg", int)
    labels, boxes, texts = (
        item[f"image/object/{name}"] for name in ("class/label", "bbox/xmin", "class/text")
    )
    assert isinstance(labels, np.ndarray)
    assert isinstance(boxes, np.ndarray)
    assert isinstance(texts, list)
    assert (str(labels.dtype), str(boxes.dtype)) == ("int64", "float32")
    assert all(isinstance(text, bytes) for text in texts)


@pytest.mark.parametrize(
    "counts", [(0,), (0, 0, 3), (3, 0, 0, 2, 0), (1,) * 90], ids=["none", "late", "gaps", "many"]
)
def test_shards_of_any_size(counts: Sequence[int], tmp_path: Path) -> None:
    """Also more shards than files may be open, in a random order."""
    expected = []
    for shard, count in enumerate(counts):
        records = [make_example({"n": 100 * shard + number}) for number in range(count)]
        expected += [100 * shard + number for number in range(count)]
        write_tfrecord(tmp_path / f"a-{shard:05}-of-{len(counts):05}.tfrecord", *records)
    assert run("index", str(tmp_path), "--output", str(tmp_path / "index")).exit_code == 0
    if not expected:
        with pytest.raises(InputError, match="no records to infer the features from"):
            shardbeam.open(tmp_path)
        return
    before = len(os.listdir("/proc/self/fd"))
    dataset = shardbeam.open(tmp_path)
    assert [item["n"] for item in dataset] == expected
    order = random.Random(1).sample(range(len(expected)), len(expected))
    assert [dataset[number]["n"] for number in order] == [expected[number] for number in order]
    open_files = files_module.OPEN_FILES._files
    assert len(open_files) <= files_module.MAX_OPEN_FILES
    assert len(os.listdir("/proc/self/fd")) <= before + files_module.MAX_OPEN_FILES


# Other processes


def _read(dataset: ExampleSequence[Any], numbers: Sequence[int], queue: Any) -> None:  # noqa: ANN401
    queue.put([dataset[number]["image/filename"] for number in numbers])


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_processes_share_it(method: str, coco: Build) -> None:
    dataset = shardbeam.open(coco.output)[::-1]
    keys = [item["image/filename"] for item in dataset]
    context: Any = multiprocessing.get_context(method)
    queue = context.Queue()
    parts = [range(start, 40, 2) for start in range(2)]
    processes = [
        context.Process(target=_read, args=(dataset, part, queue), daemon=True) for part in parts
    ]
    for process in processes:
        process.start()
    found = sorted(key for _ in parts for key in queue.get(timeout=120))
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    assert found == sorted(keys)


def test_a_fork_does_not_wait_for_a_thread_of_its_parent(coco: Build) -> None:
    dataset = shardbeam.open(coco.output)
    key = dataset[0]["image/filename"]
    with files_module.OPEN_FILES._lock:
        child = os.fork()
        if not child:
            os._exit(0 if dataset[0]["image/filename"] == key else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_threads_share_it(coco: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are closed while others are read, with room for two."""
    monkeypatch.setattr(files_module, "MAX_OPEN_FILES", 2)
    dataset = shardbeam.open(coco.output)
    keys = [item["image/filename"] for item in dataset]
    wrong: list[int] = []

    def read(seed: int) -> None:
        rng = random.Random(seed)
        for number in rng.choices(range(40), k=300):
            if dataset[number]["image/filename"] != keys[number]:
                wrong.append(number)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_pickles_are_small_and_absolute(
    coco: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(coco.output.parent)
    dataset = shardbeam.open("out", split="train")
    pickled = pickle.dumps(dataset)
    chosen = shardbeam.open("out", where={"min_objects": 3})[1:].detection(boxes="xywh")
    pickled_view = pickle.dumps(chosen)
    assert len(pickled) < 1_000
    monkeypatch.chdir(tmp_path)
    again = pickle.loads(pickled)
    assert repr(again) == repr(dataset)
    assert plain(again[7]) == plain(dataset[7])
    view = pickle.loads(pickled_view)
    assert (len(view), repr(view)) == (len(chosen), repr(chosen))
    np.testing.assert_array_equal(view[0][1]["boxes"], chosen[0][1]["boxes"])


def test_a_pickle_of_another_dataset_is_an_error(copied: Path) -> None:
    pickled = pickle.dumps(shardbeam.open(copied))
    swap_shards(copied)
    assert run("index", str(copied), "--output", str(copied.parent / "i")).exit_code == 0
    for path in (copied.parent / "i").iterdir():
        shutil.copy(path, copied / "index")
    list_again(copied)
    info = json.loads((copied / "dataset_info.json").read_bytes())
    lengths = [len(list(parse_frames((copied / name).read_bytes()))) for name in shards(copied)]
    info["splits"][0]["shardLengths"] = [str(length) for length in lengths]
    (copied / "dataset_info.json").write_text(json.dumps(info))
    again = pickle.loads(pickled)
    with pytest.raises(InputError, match="has changed since it was opened in another process"):
        _ = again[0]


def test_the_text_says_what_is_read(coco: Build) -> None:
    dataset = shardbeam.open(coco.output)
    texts = {
        repr(each)
        for each in (
            dataset,
            dataset[1:],
            dataset.detection(),
            dataset.detection(boxes="xywh"),
            shardbeam.open(coco.output, where={"min_objects": 2}),
            shardbeam.open(coco.output, where={"min_objects": 3}),
        )
    }
    assert len(texts) == 6
    assert repr(shardbeam.open(coco.output)) == repr(dataset)


# Changes and damage


def shards(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.tfrecord-*"))


def swap_shards(folder: Path) -> None:
    """Gives each shard the name of the next, as files that appear in one step."""
    data = [(folder / name).read_bytes() for name in shards(folder)]
    for name, other in zip(shards(folder), data[1:] + data[:1], strict=True):
        (folder / "new").write_bytes(other)
        os.replace(folder / "new", folder / name)


def test_swapped_shards_are_noticed(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is returned is the right Example: each file is opened again for each read."""
    monkeypatch.setattr(files_module, "MAX_OPEN_FILES", 1)
    dataset = shardbeam.open(copied)
    keys = [item["image/filename"] for item in dataset]
    errors = []
    for _ in range(SHARDS - 1):
        swap_shards(copied)
        for number in random.Random(2).sample(range(40), 40):
            try:
                assert dataset[number]["image/filename"] == keys[number]
            except InputError as error:
                errors.append(str(error))
    assert len(errors) > 100
    assert all("the dataset has changed since its index was read" in error for error in errors)
    swap_shards(copied)
    assert [item["image/filename"] for item in dataset] == keys


@pytest.mark.parametrize(
    "change",
    [
        lambda path: os.truncate(path, 100),
        lambda path: os.truncate(path, 0),
        lambda path: path.write_bytes(bytes(path.stat().st_size)),
        lambda path: path.write_bytes(b"x" + path.read_bytes()),
        lambda path: path.unlink(),
    ],
    ids=["truncated", "emptied", "zeros", "longer", "deleted"],
)
@pytest.mark.parametrize("is_open", [False, True])
def test_a_shard_that_changes(
    change: Callable[[Path], None], is_open: bool, copied: Path, request: pytest.FixtureRequest
) -> None:
    dataset = shardbeam.open(copied)
    if is_open:
        _ = dataset[0]
    change(copied / shards(copied)[0])
    if is_open and "deleted" in request.node.name:
        _ = dataset[1]
        return
    with pytest.raises(InputError, match=r"byte \d+: the dataset has changed"):
        _ = dataset[1]
    # Its other shards are as they were.
    _ = dataset[-1]


def test_a_file_of_the_same_length_and_time(copied: Path) -> None:
    """`cp -p` and `rsync -t` keep both. A sequence that is opened later reads the new file."""
    before = shardbeam.open(copied)
    key = before[0]["image/filename"]
    assert isinstance(key, bytes)
    path = copied / shards(copied)[0]
    status = path.stat()
    new = path.with_name("new")
    new.write_bytes(path.read_bytes().replace(key, key[::-1]))
    os.utime(new, ns=(status.st_atime_ns, status.st_mtime_ns))
    os.replace(new, path)
    assert shardbeam.open(copied)[0]["image/filename"] == key[::-1]
    # This sequence has the old file open.
    assert before[0]["image/filename"] == key


def test_damaged_data_is_found_by_its_checksum(copied: Path) -> None:
    path = copied / shards(copied)[0]
    data = bytearray(path.read_bytes())
    position = data.index(b"image/filename") + 22
    data[position] ^= 1
    path.write_bytes(data)
    # In the middle of a text, it can still be parsed.
    assert len([item["image/filename"] for item in shardbeam.open(copied)]) == 40
    checked = shardbeam.open(copied, checksums=True)
    _ = checked[-1]
    with pytest.raises(InputError, match=r"byte \d+: the checksum of a record's data"):
        list(checked)


def change_index(path: Path, change: Callable[[dict[str, list[Any]]], None]) -> None:
    table = parquet.read_table(path)
    columns = table.to_pydict()
    change(columns)
    parquet.write_table(pa.table(columns, schema=table.schema), path)


def set_value(column: str, row: int, value: int | None) -> Callable[[dict[str, list[Any]]], None]:
    def change(columns: dict[str, list[Any]]) -> None:
        columns[column][row] = value

    return change


def drop_rows(columns: dict[str, list[Any]]) -> None:
    for values in columns.values():
        values.pop()


def swap_rows(columns: dict[str, list[Any]]) -> None:
    for values in columns.values():
        values[0], values[1] = values[1], values[0]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (set_value("offset", 1, -5), "row 1 says byte -5"),
        (set_value("offset", 1, 2**63 - 1), f"row 1 says byte {2**63 - 1}"),
        (set_value("offset", 1, -(2**63)), "row 1 says byte -9"),
        (set_value("offset", 0, 1), "its first record begins at byte 1"),
        (set_value("offset", 1, 0), "row 0 says"),
        (set_value("length", 0, -1), "row 0 says -1 bytes"),
        (set_value("length", 0, 2**63 - 1), "row 0 says 9"),
        (set_value("length", 1, 7), "row 1 says 7 bytes"),
        (set_value("offset", 1, None), "row 1: has no value in 'offset'"),
        (set_value("length", 1, None), "row 1: has no value in 'length'"),
        (drop_rows, "does not fit"),
        (swap_rows, "its first record begins at"),
    ],
)
def test_hostile_values_of_an_index(
    change: Callable[[dict[str, list[Any]]], None], problem: str, copied: Path
) -> None:
    path = copied / "index" / f"{shards(copied)[0]}.parquet"
    change_index(path, change)
    with pytest.raises(DamagedError, match=r"--repair CONFIG\.yaml"):
        shardbeam.open(copied)
    list_again(copied)
    with pytest.raises(InputError, match=problem) as raised:
        shardbeam.open(copied)
    assert str(path) in str(raised.value)


def test_an_index_that_is_no_index(copied: Path) -> None:
    path = copied / "index" / f"{shards(copied)[0]}.parquet"
    path.write_bytes(b"PAR1")
    list_again(copied)
    with pytest.raises(DamagedError, match="not a Parquet file"):
        shardbeam.open(copied)
    path.unlink()
    with pytest.raises(InputError, match=r"has no index .*`shardbeam index .* --output DIR`"):
        shardbeam.open(copied)


def test_more_examples_than_the_metadata_say(copied: Path) -> None:
    info = (copied / "dataset_info.json").read_text()
    document = json.loads(info)
    document["splits"][0]["shardLengths"][0] = "1"
    (copied / "dataset_info.json").write_text(json.dumps(document))
    with pytest.raises(InputError, match=r"dataset_info\.json says 1 Examples"):
        shardbeam.open(copied)


# Paths


def test_paths_and_splits(shapes: Path, tmp_path: Path) -> None:
    source = {"format": "image-folder", "images": str(shapes / "class_folders")}
    fractions = {"train": 0.5, "test": 0.5}
    output = {"path": "{folder}/out", "latest": str(tmp_path / "latest")}
    config = {"source": source, "fractions": fractions, "output": output}
    config["output"] = {"path": str(tmp_path / "1"), "latest": str(tmp_path / "latest")}
    build_config(config, folder=tmp_path)
    with pytest.raises(InputError, match=r"several splits \(train, test\); name one"):
        shardbeam.open(tmp_path / "1")
    with pytest.raises(InputError, match="no split 'trian'; did you mean 'train'"):
        shardbeam.open(tmp_path / "1", split="trian")
    expected = [plain(item) for item in shardbeam.open(tmp_path / "1", split="test")]
    pointed = shardbeam.open(tmp_path / "latest", split="test")
    assert [plain(item) for item in pointed] == expected
    (shard,) = (tmp_path / "1").glob("*-test.tfrecord-*")
    alone = shardbeam.open(shard)
    assert [item["image/encoded"] for item in alone] == [item["image/encoded"] for item in pointed]
    with pytest.raises(InputError, match="nothing is there"):
        shardbeam.open(tmp_path / "nowhere")


def test_another_container_names_what_reads_it(shapes: Path, tmp_path: Path) -> None:
    pytest.importorskip("array_record")
    build(
        "image-folder",
        *("--images", shapes / "class_folders", "--set", "output.container=array_record"),
        output=tmp_path / "out",
    )
    with pytest.raises(InputError, match=r"not array_record; .* with tfds\.builder"):
        shardbeam.open(tmp_path / "out")
    done = run("index", str(tmp_path / "out"), "--output", str(tmp_path / "index"))
    assert (done.exit_code, "only TFRecord files need an index" in done.stderr) == (1, True)


def test_class_names(coco: Build, tmp_path: Path) -> None:
    names = shardbeam.class_names(coco.output)
    assert names == {1: "circle", 3: "square", 4: "triangle", 7: "star"}
    assert list(names) == sorted(names)
    write_tfrecord(tmp_path / "a.tfrecord", make_example({"n": 1}))
    assert shardbeam.class_names(tmp_path) == {}


# {argument of `open`: values that it does not take}
WRONG: dict[str, Sequence[object]] = {
    "path": (3, None, b"a", NAN, (), "", "a\0b", "\ud800"),
    "split": (3, b"a", np.eye(2), "", "\ud800", "x" * 100),
    "index": (3, True, b"a", "", "a\0b"),
    "cache": (3, True, b"a", "", "a\0b", "gs://bucket/copies"),
    "cache_bytes": ("10 GB", 1.5, NAN, True, (), 0, -1, -(2**70)),
    "features": ("image/encoded", 3, b"a", True, ["image/encoded", 3], [""], ["\ud800"]),
    "decode": (1, "no", None),
    "checksums": (1, "no", NAN),
    "where": (
        *({"classes": ["squrae"]}, {"classes": [2]}, {"keys": ["000000000003.png"]}),
        *({"classs": [1]}, {3: 1}, {None: 1}),
        *({"classes": value} for value in ("square", 3, None, b"a", np.array([1.5]))),
        *({"classes": [each]} for each in (1.5, 1.0, NAN, True, None, b"a", (1,), 2**70)),
        *({"classes": ["\ud800"]}, {"keys": ["\ud800"]}),
        *({"keys": value} for value in ("a.jpg", 3, None, b"a")),
        *({"keys": [each]} for each in (3, None, b"a", True, Path("a"))),
        *({"min_objects": each} for each in ("3", 2**70, -1, True, 1.0, NAN, None, ())),
        *(3, 0, "", [], ["classes"]),
    ),
}
# Those of `detection`.
WRONG_VIEWS: dict[str, Sequence[object]] = {
    "boxes": (3, None, "", b"xywh", np.array(["xyxy", "xywh"])),
    "masks": (1, "no", None),
    "keypoints": (0, "", NAN),
}


def refusals(
    function: Callable[..., object], wrong: Mapping[str, Sequence[object]], **given: object
) -> Iterator[str]:
    """Yields what is said of each argument; not what a library raises by itself."""
    for name, values in wrong.items():
        for value in values:
            with pytest.raises((TypeError, ValueError, InputError)) as raised:
                function(**{**given, name: value})
            assert type(raised.value) in (TypeError, ValueError, InputError)
            assert "\n" not in str(raised.value)
            yield ascii(f"{name}={value!r}")[1:-1]
            yield f"    {type(raised.value).__name__}: {raised.value}"


def test_wrong_arguments(coco: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = str(coco.output)
    shown = [
        *refusals(shardbeam.open, {"cache_bytes": [10**9]}, path=path),
        *refusals(shardbeam.open, {"cache_bytes": WRONG["cache_bytes"]}, path=path, cache="c"),
        *refusals(
            shardbeam.open,
            {name: values for name, values in WRONG.items() if name != "cache_bytes"},
            path=path,
        ),
        "--- class_names",
        *refusals(shardbeam.class_names, {"path": WRONG["path"]}),
        "--- detection",
        *refusals(shardbeam.open(path).detection, WRONG_VIEWS),
    ]
    # As NumPy 1 shows it.
    text = "\n".join(shown).replace("np.float64(1.5)", "1.5")
    check_screen("open_refusals", text.replace(path, "PATH"))
    assert os.listdir(tmp_path) == []


# Selecting


def ids_of(features: Mapping[str, list[Any]]) -> set[int]:
    return {*features["image/object/class/label"]}


@pytest.mark.parametrize(
    ("where", "chosen"),
    [
        ({"classes": [3]}, lambda each: 3 in ids_of(each)),
        ({"classes": ["square"]}, lambda each: 3 in ids_of(each)),
        ({"classes": [1, "star"]}, lambda each: ids_of(each) & {1, 7}),
        ({"classes": []}, lambda each: False),
        ({"min_objects": 4}, lambda each: len(each["image/object/area"]) >= 4),
        ({"classes": np.array([1, 7])}, lambda each: ids_of(each) & {1, 7}),
        ({"min_objects": 0}, lambda each: True),
        ({"min_objects": np.int64(4)}, lambda each: len(each["image/object/area"]) >= 4),
        ({"min_objects": 2**31 - 1}, lambda each: False),
        (
            {"classes": [3], "min_objects": 4},
            lambda each: 3 in ids_of(each) and len(each["image/object/area"]) >= 4,
        ),
        (
            {"keys": ["000000000003.jpg", "000000000011.jpg"]},
            lambda each: each["image/filename"][0] in (b"000000000003.jpg", b"000000000011.jpg"),
        ),
        ({}, lambda each: True),
    ],
)
def test_where(where: Where, chosen: Callable[[Any], object], coco: Build) -> None:
    expected = [example.features for example in coco.examples() if chosen(example.features)]
    found = shardbeam.open(coco.output, where=where)
    # All objects of an Example are kept.
    assert [plain(item) for item in found] == expected
    assert [plain(item) for item in found[1:3]] == expected[1:3]
    assert len(found) == len(expected)


def test_an_older_index_has_no_classes(copied: Path, tmp_path: Path) -> None:
    expected = [item["image/filename"] for item in shardbeam.open(copied, where={"classes": [3]})]
    for path in (copied / "index").iterdir():
        table = parquet.read_table(path).drop_columns(
            ["classes", "findings", "map_classes", "crop_hashes", "class_objects"]
        )
        names = ["classes" if name == "classes_digest" else name for name in table.column_names]
        parquet.write_table(table.rename_columns(names), path)
    list_again(copied)
    assert len(shardbeam.open(copied, where={"min_objects": 0})) == 40
    with pytest.raises(InputError, match=r"no 'classes'.*`shardbeam index .*index=DIR"):
        shardbeam.open(copied, where={"classes": [3]})
    assert run("index", str(copied), "--output", str(tmp_path / "new")).exit_code == 0
    found = shardbeam.open(copied, index=tmp_path / "new", where={"classes": ["square"]})
    assert [item["image/filename"] for item in found] == expected


@pytest.fixture(scope="module")
def mapped(tmp_path_factory: pytest.TempPathFactory) -> Build:
    folder = tmp_path_factory.mktemp("maps")
    return build(*write_maps(folder), output=folder / "out")


def keys_with(path: Path, *classes: int | str, index: Path | None = None) -> set[str]:
    found: Any = shardbeam.open(path, index=index, where={"classes": classes})
    return {item["image/filename"].decode() for item in found}


@pytest.mark.parametrize("classes", [["sky"], ["cat"], ["dog"], ["sky", "cat"], [92], []])
def test_classes_of_maps(classes: list[int | str], mapped: Build) -> None:
    numbers = {CLASSES.get(str(each), each) for each in classes}
    expected = {
        key
        for key, (objects, shown) in MAPPED.items()
        if numbers & {CLASSES[name] for name in (*objects, *shown)}
    }
    assert keys_with(mapped.output, *classes) == expected


def test_classes_of_segments(shapes: Path, tmp_path: Path) -> None:
    built = build(*panoptic_words(shapes), output=tmp_path / "out")
    for number in shardbeam.class_names(built.output):
        expected = {
            example.key
            for example in built.examples()
            if number in decode_pixels(example.features["image/panoptic/category_mask"][0])
        }
        assert expected
        assert keys_with(built.output, number) == expected


def drop_map_classes(output: Path) -> None:
    """Makes the indexes those of an older version."""
    for path in (output / "index").iterdir():
        newer = ["map_classes", "crop_hashes", "class_objects"]
        parquet.write_table(parquet.read_table(path).drop_columns(newer), path)
    list_again(output)


def test_an_older_index_has_no_classes_of_maps(mapped: Build, tmp_path: Path) -> None:
    older = tmp_path / "older"
    shutil.copytree(mapped.output, older)
    drop_map_classes(older)
    assert len(shardbeam.open(older, where={"min_objects": 1})) == 3
    with pytest.raises(InputError, match=r"no 'map_classes'.*`shardbeam index .*index=DIR"):
        shardbeam.open(older, where={"classes": ["dog"]})
    assert run("index", str(older), "--output", str(tmp_path / "new")).exit_code == 0
    assert keys_with(older, "sky", index=tmp_path / "new") == {"a.jpg", "d.jpg"}


def test_maps_under_another_name_and_without_maps(tmp_path: Path) -> None:
    words = (*write_maps(tmp_path / "in"), "--set")
    renamed = "features.rename={image/segmentation/class/encoded: map}"
    dropped = "features.drop=[image/segmentation/class/encoded]"
    for name, setting in (("renamed", renamed), ("dropped", dropped)):
        output = tmp_path / name
        build(*words, setting, output=output)
        assert keys_with(output, "sky") == {"a.jpg", "d.jpg"}
        drop_map_classes(output)
    with pytest.raises(InputError, match="no 'map_classes'"):
        keys_with(tmp_path / "renamed", "dog")
    # Examples without maps need no such column.
    assert keys_with(tmp_path / "dropped", "dog") == {"c.jpg", "d.jpg"}


def test_numbers_of_maps_are_no_classes(tmp_path: Path) -> None:
    built = build(*write_numbered_maps(tmp_path / "voc"), output=tmp_path / "out")
    assert built.manifest["numbered_maps"]
    assert shardbeam.class_names(built.output) == {1: "dog"}

    def count(split: str) -> int:
        return len(shardbeam.open(built.output, split=split, where={"classes": [1]}))

    # The map of the other image has the same number as the class.
    assert (count("train"), count("val")) == (1, 0)
    # An older index knows as much.
    drop_map_classes(built.output)
    assert (count("train"), count("val")) == (1, 0)


# Images


def test_decoded_images_have_the_pixels_of_pillow(coco: Build) -> None:
    dataset, plain_dataset = shardbeam.open(coco.output, decode=True), shardbeam.open(coco.output)
    for item, encoded in zip(dataset[:5], plain_dataset, strict=False):
        pixels = item["image/encoded"]
        assert isinstance(pixels, np.ndarray)
        assert (pixels.shape, str(pixels.dtype)) == ((120, 160, 3), "uint8")
        assert pixels.flags.writeable
        with Image.open(io.BytesIO(encoded["image/encoded"])) as image:  # type: ignore[arg-type]
            np.testing.assert_array_equal(pixels, np.asarray(image.convert("RGB")))
        # Images in a list stay as they are.
        assert item["image/object/mask"] == encoded["image/object/mask"]


def test_detection(coco: Build) -> None:
    written = coco.examples()
    dataset = shardbeam.open(coco.output)
    views = {form: dataset.detection(boxes=form) for form in ("xyxy", "xywh", "rel_yxyx")}
    for number, example in enumerate(written):
        (width, height), boxes = example.size, np.array(example.boxes).reshape(-1, 4)
        corners = boxes * [width, height, width, height]
        sizes = np.concatenate([corners[:, :2], corners[:, 2:] - corners[:, :2]], axis=1)
        expected = {"xyxy": corners, "xywh": sizes, "rel_yxyx": boxes[:, [1, 0, 3, 2]]}
        for form, view in views.items():
            image, target = view[number]
            assert image.shape == (height, width, 3)
            assert target["boxes"].shape == boxes.shape
            assert str(target["boxes"].dtype) == "float32"
            np.testing.assert_allclose(target["boxes"], expected[form], rtol=1e-5, atol=1e-3)
            assert target["labels"].tolist() == [label_id for _, label_id in example.labels]
            assert target["area"].tolist() == example.features["image/object/area"]
            assert target["iscrowd"].tolist() == example.features["image/object/is_crowd"]
            assert target["image_id"] == example.features["image/source_id"][0].decode()
            assert target.keys() == {"boxes", "labels", "area", "iscrowd", "image_id"}


def test_masks(coco: Build) -> None:
    view = shardbeam.open(coco.output).detection(masks=True)
    for (image, target), example in zip(view, coco.examples(), strict=True):
        masks = target["masks"]
        assert str(masks.dtype) == "uint8"
        assert masks.shape == (len(target["labels"]), *image.shape[:2])
        for mask, png in zip(masks, example.features["image/object/mask"], strict=True):
            with Image.open(io.BytesIO(png)) as picture:
                np.testing.assert_array_equal(mask, np.asarray(picture.convert("L")) > 0)


def keypoint_example(count: int, **other: object) -> bytes:
    return make_example(
        {
            "image/encoded": plain_jpeg((40, 20)),
            **{f"image/object/bbox/{side}": [0.25] * count for side in ("xmin", "ymin")},
            **{f"image/object/bbox/{side}": [0.75] * count for side in ("xmax", "ymax")},
            "image/object/class/label": [7] * count,
            "image/object/keypoint/x": [0.5, 0.25] * count,
            "image/object/keypoint/y": [0.5, 1.0] * count,
            "image/object/keypoint/visibility": [2, 1] * count,
            "image/source_id": b"x1",
            **other,
        }
    )


def open_records(folder: Path, *records: bytes, decode: bool = False) -> ExampleSequence[Item]:
    write_tfrecord(folder / "a.tfrecord", *records)
    run("index", str(folder), "--output", str(folder / "i"), "--overwrite", exit_code=0)
    return shardbeam.open(folder, index=folder / "i", decode=decode)


def test_keypoints_of_other_programs(tmp_path: Path) -> None:
    dataset = open_records(tmp_path, *map(keypoint_example, (2, 1, 2, 3)))
    image, target = dataset.detection(keypoints=True)[0]
    assert image.shape == (20, 40, 3)
    assert target["keypoints"].tolist() == [[[20, 10, 2], [10, 20, 1]]] * 2
    # Neither of these was written.
    assert target["iscrowd"].tolist() == [0, 0]
    assert target["area"].tolist() == [200, 200]
    with pytest.raises(InputError, match=r"no 'image/object/mask'; build it with masks: png"):
        dataset.detection(masks=True)


def test_keypoints_of_images_without_objects(tmp_path: Path) -> None:
    """They have the shape of others, so that a batch can be joined."""
    counts = (0, 2, 0, 3)
    view = open_records(tmp_path, *map(keypoint_example, counts)).detection(keypoints=True)
    for count, (_, target) in zip(counts, view, strict=True):
        assert target["keypoints"].shape == (count, 2, 3)
        assert str(target["keypoints"].dtype) == "float32"
    # Also if no image with objects was chosen.
    assert view[:1][0][1]["keypoints"].shape == (0, 2, 3)
    assert pickle.loads(pickle.dumps(view))[0][1]["keypoints"].shape == (0, 2, 3)
    # No image of this split has objects.
    write_tfrecord(tmp_path / "b.tfrecord", keypoint_example(0))
    assert run("index", str(tmp_path), "--output", str(tmp_path / "both")).exit_code == 0
    other = shardbeam.open(tmp_path, split="b", index=tmp_path / "both").detection(keypoints=True)
    assert other[0][1]["keypoints"].shape == (0, 0, 3)


def test_keypoints_of_a_later_shard(tmp_path: Path) -> None:
    for shard, counts in enumerate([(0, 0), (), (0, 1)]):
        records = map(keypoint_example, counts)
        write_tfrecord(tmp_path / f"a-{shard:05}-of-00003.tfrecord", *records)
    assert run("index", str(tmp_path), "--output", str(tmp_path / "index")).exit_code == 0
    view = shardbeam.open(tmp_path, index=tmp_path / "index").detection(keypoints=True)
    assert [target["keypoints"].shape for _, target in view] == [(0, 2, 3)] * 3 + [(1, 2, 3)]


def test_masks_that_take_too_much_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pixels_module, "_MAX_MASKS_BYTES", 2_000_000)
    mask = save(Image.new("L", (1_000, 1_000)), "PNG")
    large = {"image/encoded": plain_jpeg((1_000, 1_000)), "image/object/mask": [mask] * 3}
    small = {"image/object/mask": [save(Image.new("L", (40, 20)), "PNG")]}
    records = [keypoint_example(3, **large), keypoint_example(1, **small), keypoint_example(1)]
    view = open_records(tmp_path, *records).detection(masks=True)
    problem = (
        "its 3 masks of 1,000x1,000 pixels take 3,000,000 bytes, more than 2,000,000; read "
        "'image/object/mask' of the items themselves"
    )
    with pytest.raises(InputError, match=rf"a\.tfrecord: byte 0: {problem}"):
        _ = view[0]
    assert view[1][1]["masks"].shape == (1, 20, 40)
    with pytest.raises(InputError, match="the Example has no 'image/object/mask'"):
        _ = view[2]


@pytest.mark.parametrize(
    ("other", "problem"),
    [
        ({"image/object/class/label": [7]}, "'image/object/bbox/xmin' has 2 values for 1 objects"),
        ({"image/object/keypoint/x": [0.5]}, "1 keypoints do not fit 2 objects"),
        ({"image/encoded": b"\xff\xd8\xff"}, "JPEG"),
        ({"image/encoded": b"nothing"}, "not an image file"),
        ({"image/object/class/label": [b"cat"] * 2}, "holds no int64 values"),
    ],
)
def test_an_example_that_does_not_fit(
    other: dict[str, object], problem: str, tmp_path: Path
) -> None:
    odd = {key: value for key, value in other.items() if key != "image/object/class/label"}
    records = [keypoint_example(1), keypoint_example(2), keypoint_example(2, **odd)]
    if "image/object/class/label" in other:
        records[2] = keypoint_example(2, **other)
    if other.get("image/object/class/label") == [b"cat"] * 2:
        # Features of two kinds are refused before.
        records = [keypoint_example(2)] * 100 + [records[2]]
    view = open_records(tmp_path, *records).detection(keypoints=True)
    _ = view[1]
    with pytest.raises(InputError, match=problem) as raised:
        _ = view[-1]
    assert f"{tmp_path}/a.tfrecord: byte " in str(raised.value)


def test_one_object_for_each_example(shapes: Path, tmp_path: Path) -> None:
    words = ("--images", shapes / "images", "--set", "example_per=annotation")
    annotations = ("--annotations", shapes / "annotations" / "instances.json")
    built = build("coco", *words, *annotations, "--set", "masks=png", output=tmp_path / "out")
    view = shardbeam.open(built.output).detection(boxes="xywh", masks=True)
    for (_, target), example in zip(view, built.examples(), strict=True):
        features = example.features
        np.testing.assert_allclose(target["boxes"], [features["annotation/bbox"]], atol=1e-3)
        assert target["labels"].tolist() == features["annotation/class/label"]
        assert target["masks"].shape[0] == 1
    chosen = shardbeam.open(built.output, where={"classes": ["star"]})
    stars = [each for each in built.examples() if each.features["annotation/class/label"] == [7]]
    assert len(chosen) == len(stars) > 0


def test_classification(shapes: Path, tmp_path: Path) -> None:
    renamed = {"rename": {"image/encoded": "train/image", "image/class/label": "y"}}
    source = {"format": "image-folder", "images": str(shapes / "class_folders")}
    built = build_config({"splits": {"train": source}, "features": renamed}, folder=tmp_path)
    names = shardbeam.class_names(built.output)
    dataset = shardbeam.open(built.output, decode=True)
    for (image, label), item in zip(dataset.classification(), dataset, strict=True):
        name = item["image/filename"]
        assert isinstance(name, bytes)
        assert name.startswith(f"{names[label]}/".encode())
        np.testing.assert_array_equal(image, item["train/image"])
    with pytest.raises(InputError, match="no 'image/object/class/label'"):
        dataset.detection()
    with pytest.raises(ValueError, match="expected one of xyxy, xywh, rel_yxyx"):
        dataset.detection(boxes="yxyx")  # type: ignore[arg-type]


def test_a_classifier_takes_one_label(tmp_path: Path) -> None:
    records = [
        make_example({"image/encoded": plain_jpeg(), "image/class/label": labels})
        for labels in ([3], [1, 2], [])
    ]
    view = open_records(tmp_path, *records).classification()
    assert view[0][1] == 3
    for number, count in ((1, 2), (2, 0)):
        with pytest.raises(InputError, match=f"the image has {count} labels"):
            _ = view[number]


@pytest.mark.parametrize(
    ("file_format", "mode"),
    [
        ("JPEG", "L"),
        ("JPEG", "CMYK"),
        ("PNG", "RGB"),
        ("PNG", "P"),
        ("PNG", "RGBA"),
        ("WEBP", "RGB"),
    ],
)
def test_other_images(file_format: str, mode: str, tmp_path: Path) -> None:
    data = draw_image(file_format, width=30, height=20, mode=mode)
    record = make_example({"image/encoded": data, "image/class/label": 1})
    dataset = open_records(tmp_path, record, decode=True)
    with Image.open(io.BytesIO(data)) as image:
        expected = np.asarray(image.convert("RGB"))
    np.testing.assert_array_equal(dataset.classification()[0][0], expected)
    if file_format != "WEBP":
        # `features.json` would name it; only JPEG and PNG are recognized without it.
        np.testing.assert_array_equal(dataset[0]["image/encoded"], expected)


def test_maps_keep_their_values(tmp_path: Path) -> None:
    values = np.arange(600, dtype=np.uint16).reshape(20, 30)
    maps = {}
    for key, pixels in (("eight", (values % 251).astype(np.uint8)), ("sixteen", values)):
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "PNG")
        maps[key] = buffer.getvalue()
    item = open_records(tmp_path, make_example(maps), decode=True)[0]
    for key, expected in (("eight", values % 251), ("sixteen", values)):
        found = item[key]
        assert isinstance(found, np.ndarray)
        assert (found.shape, found.flags.writeable) == ((20, 30, 1), True)
        np.testing.assert_array_equal(found[..., 0], expected)
    assert item["sixteen"].dtype == np.uint16  # type: ignore[union-attr]


def test_raw_cifar_images(tmp_path: Path) -> None:
    planes = np.random.default_rng(0).integers(0, 256, (3, 32, 32), dtype=np.uint8)
    record = make_example({"image/encoded": planes.tobytes(), "image/class/label": 1})
    image, _ = open_records(tmp_path, record).classification()[0]
    np.testing.assert_array_equal(image, planes.transpose(1, 2, 0))


def test_a_bomb_is_refused(tmp_path: Path) -> None:
    data = bytearray(plain_jpeg((16, 16)))
    frame = data.index(b"\xff\xc0")
    data[frame + 5 : frame + 9] = struct.pack(">HH", 65_000, 65_000)
    record = make_example({"image/encoded": bytes(data), "image/class/label": 1})
    with pytest.raises(InputError, match="pixels are more than max_pixels"):
        _ = open_records(tmp_path, record).classification()[0]


# Other programs' files


def test_keys_that_few_examples_have(tmp_path: Path) -> None:
    """The first 64 decide what is a single value; later keys are lists."""
    records = [make_example({"a": number, "b": [1.5, 2.5]}) for number in range(80)]
    records[70] = make_example({"a": 70, "rare": [b"x"], "odd": [1]})
    dataset = open_records(tmp_path, *records)
    assert dataset[69]["a"] == 69
    later = plain(dataset[70])
    assert later == {"a": [70], "b": [], "rare": [b"x"], "odd": [1]}
    chosen = shardbeam.open(tmp_path, index=tmp_path / "i", features=["b"])
    assert [plain(chosen[number]) for number in (0, 70)] == [{"b": [1.5, 2.5]}, {"b": []}]
    write_tfrecord(tmp_path / "b.tfrecord", *records[:70], make_example({"a": [1, 2]}))
    (tmp_path / "a.tfrecord").unlink()
    assert run("index", str(tmp_path), "--output", str(tmp_path / "i")).exit_code == 0
    with pytest.raises(InputError, match="'a' has 2 values instead of 1"):
        _ = shardbeam.open(tmp_path, index=tmp_path / "i")[-1]


def test_records_that_are_no_examples(tmp_path: Path) -> None:
    dataset = open_records(tmp_path, *[make_example({"a": 1})] * 70)
    good = tfrecord(make_example({"a": 1}))
    size = len(good) - 16
    bad = tfrecord(b"\xff" * size)
    (tmp_path / "a.tfrecord").write_bytes(good * 69 + bad)
    assert dataset[0] == {"a": 1}
    with pytest.raises(InputError, match=r"is not a tf\.train\.Example"):
        _ = dataset[69]


# The command `index`


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    folder = tmp_path / "foreign"
    folder.mkdir()
    for shard in range(3):
        records = [
            make_example(
                {
                    "image/encoded": draw_image("JPEG", width=20 + n, height=10),
                    "image/filename": f"{shard}/{n}.jpg".encode(),
                    "image/object/class/label": [n, n, 2**40],
                    **({"image/class/label": [9]} if n else {}),
                }
            )
            for n in range(shard + 1)
        ]
        write_tfrecord(folder / f"train-{shard:05}-of-00003.tfrecord", *records)
    return folder


def tfrecord2idx(data: bytes) -> str:
    """What NVIDIA DALI's and vahidk's scripts of that name write."""
    lines, position = [], 0
    for record in parse_frames(data):
        lines.append(f"{position} {len(record) + 16}\n")
        position += len(record) + 16
    return "".join(lines)


def test_an_index_of_anyone_s_files(foreign: Path, tmp_path: Path) -> None:
    done = run("index", str(foreign), "--output", str(tmp_path / "i"), "--idx")
    assert (done.exit_code, done.stdout) == (0, "train: 6 examples in 3 files\n")
    for shard in range(3):
        name = f"train-{shard:05}-of-00003.tfrecord"
        data = (foreign / name).read_bytes()
        assert (tmp_path / "i" / f"{name}.idx").read_text() == tfrecord2idx(data)
        rows = parquet.read_table(tmp_path / "i" / f"{name}.parquet").to_pylist()
        for n, (row, record) in enumerate(zip(rows, parse_frames(data), strict=True)):
            assert row["key"] == f"{shard}/{n}.jpg"
            assert (row["split"], row["shard"], row["source"]) == ("train", shard, "train")
            assert (row["width"], row["height"], row["format"]) == (20 + n, 10, "jpeg")
            assert row["crc32c"] == google_crc32c.value(record)
            # Ids that do not fit are left out.
            assert row["classes"] == ([n, 9] if n else [0])
            assert (row["objects"], row["labels"], row["dhash"]) == (3, None, None)
    found = shardbeam.open(foreign, index=tmp_path / "i", where={"classes": [9]})
    assert [item["image/filename"] for item in found] == [b"1/1.jpg", b"2/1.jpg", b"2/2.jpg"]


def test_an_index_of_anyone_s_maps(tmp_path: Path) -> None:
    """The values of maps are ids of classes, also where nothing names these."""
    folder = tmp_path / "foreign"
    folder.mkdir()
    values = np.zeros((24, 32), np.uint8)
    values[:4], values[8:], values[20:] = 255, 7, 3
    shown = save(Image.fromarray(values), "PNG")
    # It does not fit its image.
    other = save(Image.fromarray(values[:5]), "PNG")
    key = "image/segmentation/class/encoded"
    records = [
        make_example({"image/encoded": plain_jpeg(), **more})
        for more in ({key: shown}, {key: other}, {})
    ]
    write_tfrecord(folder / "train.tfrecord", *records)
    for name, expected in (("", [3, 7]), ("zero", [0, 3, 7])):
        if name:
            (folder / "labels.txt").write_text(name)
        index = tmp_path / f"index {name}"
        assert run("index", str(folder), "--output", str(index)).exit_code == 0
        table = parquet.read_table(index / "train.tfrecord.parquet")
        assert table["map_classes"].to_pylist() == [expected, None, None]
    (folder / "labels.txt").unlink()
    index = tmp_path / "index "
    assert len(shardbeam.open(folder, index=index, where={"classes": [7]})) == 1
    assert len(shardbeam.open(folder, index=index, where={"classes": [255]})) == 0


@pytest.mark.parametrize("maps", ["numbered", "without ids"])
def test_an_index_of_maps_without_ids(maps: str, shapes: Path, tmp_path: Path) -> None:
    words = (*panoptic_words(shapes), "--set", "features.drop=[image/panoptic/category_mask]")
    if maps == "numbered":
        words = write_numbered_maps(tmp_path / "in")
    built = build(*words, output=tmp_path / "out")
    assert run("index", str(built.output), "--output", str(tmp_path / "index")).exit_code == 0
    for path in (tmp_path / "index").iterdir():
        assert set(parquet.read_table(path)["map_classes"].to_pylist()) == {None}


def test_an_index_replaces_nothing_by_itself(foreign: Path, tmp_path: Path) -> None:
    words = ["index", str(foreign), "--output", str(tmp_path / "i")]
    assert run(*words).exit_code == 0
    before = {path: path.read_bytes() for path in (tmp_path / "i").iterdir()}
    done = run(*words)
    assert (done.exit_code, "exists; replace it with --overwrite" in done.stderr) == (2, True)
    assert run(*words, "--overwrite").exit_code == 0
    assert {path: path.read_bytes() for path in (tmp_path / "i").iterdir()} == before


@pytest.mark.parametrize("below", ["", "index", "new/folder"])
def test_nothing_is_added_to_a_dataset(below: str, copied: Path) -> None:
    before = sorted(copied.rglob("*"))
    output = copied / below
    link = copied.parent / "link"
    link.symlink_to(copied)
    for path in (output, link / below):
        done = run("index", str(copied), "--output", str(path))
        assert (done.exit_code, "lies in a dataset" in done.stderr) == (2, True)
    assert sorted(copied.rglob("*")) == before


def test_files_that_cannot_be_indexed(foreign: Path, tmp_path: Path) -> None:
    path = foreign / "train-00001-of-00003.tfrecord"
    path.write_bytes(path.read_bytes()[:-1])
    done = run("index", str(foreign), "--output", str(tmp_path / "i"))
    assert (done.exit_code, "cut off within a record" in done.stderr) == (1, True)
    path.unlink()
    done = run("index", str(foreign), "--output", str(tmp_path / "i"))
    assert (done.exit_code, "is missing" in done.stderr) == (1, True)
    assert run("index", str(tmp_path / "none"), "--output", str(tmp_path / "i")).exit_code == 1
