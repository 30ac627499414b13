"""`shardbeam show` on our datasets and on other TFRecord files, whole and damaged."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from shardbeam.pipelines.cli.arguments import parse_arguments
from shardbeam.pipelines.cli.reader_commands import ShowArguments
from shardbeam.pipelines.cli.tables import PLAIN, Layout, stdout_layout
from shardbeam.pipelines.commands.show import render_example
from shardbeam.readers.open.stored_dataset import open_dataset
from shardbeam.transforms.containers.base import read_examples
from shardbeam.transforms.containers.tfrecord import frame
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.examples.example_pb2 import Example
from tests.support.builds import Build, build
from tests.support.dataset import run
from tests.support.python_runs import LIST_MODULES, run_python
from tests.support.tfrecords import draw_image, make_example, tfrecord, write_tfrecord


def render(features: dict[str, object]) -> list[str]:
    """Renders an Example; without the headings."""
    example = Example.FromString(make_example(features))
    return render_example(example).splitlines()[1:]


def show_error(*words: str | Path) -> str:
    exit_code, _, stderr = run("show", *map(str, words))
    assert exit_code == 1
    prefix = "shardbeam: error: "
    assert stderr.startswith(prefix)
    assert stderr.count("\n") == 1
    return stderr.removeprefix(prefix).rstrip("\n")


@pytest.fixture(scope="module")
def dataset(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Build:
    built = build(
        *("coco", "--images", shapes / "images", "--name", "shapes"),
        *("--annotations", shapes / "annotations" / "instances.json"),
        *("--fractions", "train=0.7,validation=0.3"),
        *("--set", "output.num_shards={train: 50, validation: 1}"),
        output=tmp_path_factory.mktemp("show") / "out",
    )
    assert built.exit_code == 0
    return built


def test_a_dataset_of_ours(dataset: Build) -> None:
    exit_code, stdout, stderr = run("show", str(dataset.output))
    assert (exit_code, stderr) == (0, "")
    splits, *examples = stdout.split("\n\n")
    counts = {split: dataset.counts(split)["examples"] for split in ("train", "validation")}
    assert [line.split()[:3] for line in splits.splitlines()] == [
        ["split", "shards", "examples"],
        ["train", "50", str(counts["train"])],
        ["validation", "1", str(counts["validation"])],
    ]
    # Most of the shards are empty.
    assert len(examples) == 3
    for number, (text, example) in enumerate(zip(examples, dataset.examples(), strict=False), 1):
        title, headings, *rows = text.splitlines()
        assert title.startswith(f"train, example {number} of {counts['train']}, in shapes-train.tf")
        assert headings.split() == ["key", "kind", "count", "values"]
        cells = {row.split(maxsplit=3)[0]: row.split(maxsplit=3)[1:] for row in rows}
        assert list(cells) == sorted(example.features)
        assert cells["image/filename"] == ["bytes", "1", f"'{example.key}'"]
        assert cells["image/encoded"][2].startswith("jpeg 160\u00d7120, ")
        labels = example.features["image/object/class/label"]
        assert cells["image/object/class/label"][1] == str(len(labels))


def test_the_split_and_the_limit(dataset: Build) -> None:
    words = ["show", str(dataset.output), "--split", "validation", "--limit", "1000"]
    exit_code, stdout, _ = run(*words)
    assert exit_code == 0
    assert stdout.count("\nvalidation, example ") == dataset.counts("validation")["examples"]
    assert "\ntrain, example" not in stdout


def test_neither_beam_nor_tensorflow_is_imported(tmp_path: Path) -> None:
    path = write_tfrecord(tmp_path / "a.record", make_example({"n": 1}))
    result = run_python(LIST_MODULES, "show", str(path))
    assert result.returncode == 0, result.stderr
    modules = result.stdout.rpartition("MODULES ")[2].split()
    assert "shardbeam.pipelines.commands.show" in modules
    assert {"apache_beam", "tensorflow"}.isdisjoint(modules)


def test_a_file_of_anyones(shared_data: Path) -> None:
    path = shared_data / "datumaro" / "tf_detection_api_dataset" / "train.tfrecord"
    exit_code, stdout, _ = run("show", str(path))
    assert exit_code == 0
    assert "\ntrain, example 1, in train.tfrecord\n" in stdout
    lines = [" ".join(line.split()) for line in stdout.splitlines()]
    assert "image/object/bbox/xmin float 3 0.0, 0.0, 0.125" in lines
    assert "image/object/class/text bytes 3 'label_2', 'label_3', ''" in lines
    assert any(line.startswith("image/encoded bytes 1 jpeg 16\u00d716, ") for line in lines)


def test_shards_of_anyones_are_one_split_in_order(tmp_path: Path) -> None:
    for index in (10, 2, 0, 1, *range(3, 10), 11):
        record = make_example({"shard": index})
        write_tfrecord(tmp_path / f"train.record-{index}-of-12", record)
    write_tfrecord(tmp_path / "validation-00000-of-00001", make_example({"shard": 0}))
    write_tfrecord(tmp_path / "test-00000-of-00001.tfrecords", make_example({"shard": 0}))
    for other in ("train.record-0-of-12.idx", "data-00000-of-00001.parquet", ".x.record", "README"):
        (tmp_path / other).write_text("no records")
    exit_code, stdout, _ = run("show", str(tmp_path), "--split", "train", "--limit", "12")
    assert exit_code == 0
    assert [line.split()[0] for line in stdout.splitlines()[:4]] == [
        "split",
        "test",
        "train",
        "validation",
    ]
    shown = [line.split()[-1] for line in stdout.splitlines() if line.startswith("shard ")]
    assert shown == [str(index) for index in range(12)]


@pytest.mark.parametrize(
    ("features", "row"),
    [
        ({"n": -5}, "n    int64      1  -5"),
        ({"x": 0.1}, "x    float      1  0.1"),
        ({"x": [float("nan"), 16777216.0]}, "x    float      2  nan, 1.6777216e+07"),
        ({"none": []}, "none  none      0"),
        ({"s": "臉書".encode()}, "s    bytes      1  '臉書'"),
        ({"s": b"two\nlines\x1b[2J"}, r"s    bytes      1  'two\nlines\x1b[2J'"),
        ({"s": b"[red]x[/red]"}, "s    bytes      1  '[red]x[/red]'"),
        ({"s": b""}, "s    bytes      1  ''"),
        ({"s": b"\0\1"}, "s    bytes      1  2 bytes: 00 01"),
        ({"s": b"\xff" * 3072}, "s    bytes      1  3.1 kB: ff ff ff ff ff ff ff ff …"),
        ({"s": b"a" * 1000}, f"s    bytes      1  '{'a' * 64}… (1,000)"),
        ({"s": b"\xff\xd8\xff\xe0"}, "s    bytes      1  jpeg, 4 bytes"),
        ({"\x1b[2J": 1}, r"\x1b[2J  int64      1  1"),
    ],
)
def test_values(features: dict[str, object], row: str) -> None:
    assert render(features) == [row]


@pytest.mark.parametrize(
    ("file_format", "mode", "text"),
    [
        ("JPEG", "L", "jpeg 30\u00d720, "),
        ("PNG", "RGB", "png 30\u00d720, "),
        ("WEBP", "RGB", "webp, "),
    ],
)
def test_images(file_format: str, mode: str, text: str) -> None:
    data = draw_image(file_format, width=30, height=20, mode=mode)
    (row,) = render({"image": data})
    assert row.split(maxsplit=3)[3].startswith(text)


def test_many_and_long_keys_are_cut() -> None:
    features: dict[str, object] = {f"a{number:03}": number for number in range(300)}
    rows = render({**features, "image/height": 1, "a" * 10_000: 2})
    # The heading is left out by `render`; those of the image come first.
    assert rows[0].split() == ["image/height", "int64", "1", "1"]
    assert rows[-1] == "... and 102 more (--json has all)"
    assert len(rows) == 201
    (row,) = render({"x" * 10_000: 1})
    assert row.startswith(f"{'x' * 400}… (10,000 characters)  int64")


def test_long_lists_are_cut() -> None:
    (row,) = render({"n": list(range(1000, 1120))})
    values = row.split(maxsplit=3)[3]
    assert values.startswith("1000, 1001, ")
    assert values.endswith(", … (120)")
    assert len(values) < 80
    assert row.split()[2] == "120"


def test_a_narrow_terminal_folds() -> None:
    example = Example.FromString(make_example({"a/rather/long/key": b"x" * 60}))
    text = render_example(example, layout=Layout(columns=40, styled=False))
    assert max(map(len, text.splitlines())) <= 40
    assert text.count("x") == 60


@given(st.dictionaries(st.text(), st.lists(st.binary() | st.binary(max_size=3), min_size=1)))
def test_whatever_bytes_hold_a_line_is_a_line(features: dict[str, object]) -> None:
    rows = render(features)
    assert len(rows) == len(features)
    assert all(character.isprintable() for row in rows for character in row)


RECORDS = tfrecord(make_example({"n": 1}), make_example({"n": 2}))
SECOND = len(RECORDS) // 2


def frame_all(records: list[bytes]) -> bytes:
    return tfrecord(*records)


def damaged(position: int) -> bytes:
    content = bytearray(RECORDS)
    content[position] ^= 1
    return bytes(content)


def header(length: int) -> bytes:
    return frame(length, crc32c=0)[0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no records in split 'x'"),
        (b"short", "byte 0: not a TFRecord file, or a damaged one: cut off within a record's head"),
        (
            b"{" * 100,
            "byte 0: not a TFRecord file, or a damaged one: the checksum of a record's le",
        ),
        (gzip.compress(RECORDS, mtime=0), "compressed with gzip; decompress it first (gunzip)"),
        (RECORDS[:-1], f"byte {SECOND}: cut off within a record of "),
        (RECORDS[: SECOND + 4], f"byte {SECOND}: cut off within a record's header"),
        (damaged(SECOND), f"byte {SECOND}: the checksum of a record's length does not match"),
        (damaged(SECOND + 14), f"byte {SECOND}: the checksum of a record's data does not match"),
        (header(2**63), f"byte 0: not a TFRecord file, or a damaged one: a record of {2**63} byte"),
        (
            tfrecord(make_example({"n": 1}), b"hello, world; no Example"),
            f"byte {SECOND}: the record of 24 bytes is not a tf.train.Example; it begins with "
            "68 65 6c 6c 6f 2c 20 77 6f 72 6c 64 3b 20 6e 6f ...",
        ),
        # A SequenceExample: what it has beside an Example's field would be lost.
        (tfrecord(b"\x12\x00"), "byte 0: the record of 2 bytes is not a tf.train.Example"),
    ],
)
def test_bad_files(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.record"
    path.write_bytes(content)
    assert show_error(path).startswith(f"{path}: {message}")


@given(content=st.binary(max_size=60) | st.lists(st.binary(max_size=60)).map(frame_all))
def test_any_bytes_are_examples_or_an_error(
    content: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.record"
    path.write_bytes(content)
    message = ""
    try:
        assert all(map(render_example, read_examples(open_dataset(str(path)).splits[0].shards[0])))
    except InputError as error:
        message = str(error)
    assert not message or message.startswith(f"{path}: byte ")


def test_what_is_good_is_shown_before_the_error(tmp_path: Path) -> None:
    path = tmp_path / "x.record"
    path.write_bytes(damaged(SECOND))
    exit_code, stdout, stderr = run("show", str(path))
    assert exit_code == 1
    assert stdout.count("x, example") == 1
    assert f"byte {SECOND}" in stderr
    # Nobody knows the part that was not read.
    assert run("show", str(path), "--limit", "1").exit_code == 0


def test_a_record_as_long_as_gzips_magic_is_no_gzip(tmp_path: Path) -> None:
    """Its length begins with the same two bytes, 1f 8b."""
    record = make_example({"s": b"a" * (0x8B1F - 23)})
    assert struct.pack("<Q", len(record))[:2] == b"\x1f\x8b"
    path = write_tfrecord(tmp_path / "x.record", record)
    assert run("show", str(path)).exit_code == 0


def test_a_reader_that_left_ends_it(tmp_path: Path) -> None:
    """Had it gone on, it would have come upon the damage."""
    path = tmp_path / "x.record"
    path.write_bytes(damaged(SECOND))
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        result = subprocess.run(
            [sys.executable, "-c", LIST_MODULES, "show", str(path)],
            stdout=write_end,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(write_end)
    assert (result.returncode, result.stderr) == (0, "")


def test_a_terminal_has_a_width(monkeypatch: pytest.MonkeyPatch) -> None:
    assert stdout_layout() == PLAIN
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "50")
    assert stdout_layout() == Layout(columns=50, styled=True)


def test_bad_paths(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert show_error(missing) == f"{missing}: nothing is there"
    assert show_error(tmp_path) == f"{tmp_path}: the folder is empty"
    (tmp_path / "notes.txt").write_text("x")
    assert show_error(tmp_path) == (
        f"{tmp_path}: neither dataset_info.json nor a file named *.tfrecord or *.record"
    )
    escaped = tmp_path / "a\x1b[2J"
    assert show_error(escaped) == f"{tmp_path}/a\\x1b[2J: nothing is there"
    long = tmp_path / ("x" * 300)
    assert show_error(long) == f"{long}: cannot be listed: File name too long"


def test_an_unknown_split(dataset: Build) -> None:
    assert show_error(dataset.output, "--split", "trian") == (
        f"{dataset.output}: no split 'trian'; did you mean 'train'?"
    )
    assert show_error(dataset.output, "--split", "7") == (
        f"{dataset.output}: no split '7'; there are: train, validation"
    )


def test_missing_shards(dataset: Build, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    shutil.copytree(dataset.output, folder)
    name = "shapes-train.tfrecord-00007-of-00050"
    (folder / name).unlink()
    assert show_error(folder) == f"{folder}: split 'train': {name} is missing"
    assert run("show", str(folder), "--split", "validation").exit_code == 0
    # The same without metadata.
    for path in folder.iterdir():
        if "tfrecord" not in path.name:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert show_error(folder) == f"{folder}: split 'shapes-train': {name} is missing"
    assert run("show", str(folder), "--split", "shapes-validation").exit_code == 0


def test_files_that_would_be_one_split(tmp_path: Path) -> None:
    for name in ("train-0-of-2.record", "train-1-of-2.record", "train-0-of-1.record"):
        write_tfrecord(tmp_path / name, make_example({"n": 1}))
    assert show_error(tmp_path).startswith(
        f"{tmp_path}: train-*-of-1.record and train-*-of-2.record would both be the split 'train'"
    )


@pytest.mark.parametrize("left", ["manifest.json", ".staging/plan/commit.json"])
def test_half_a_dataset_is_none(left: str, tmp_path: Path) -> None:
    write_tfrecord(tmp_path / "d-train.tfrecord-00000-of-00001", make_example({"n": 1}))
    (tmp_path / left).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / left).write_text("{}")
    assert show_error(tmp_path).startswith(f"{tmp_path}: no committed dataset: ")


def test_metadata_of_others(tmp_path: Path) -> None:
    """A template for the shards' names, 64-bit integers as numbers, unknown keys."""
    for index in range(2):
        record = make_example({"shard": index})
        write_tfrecord(tmp_path / f"test_{index:05}.tfrecord", record)
    info = {
        "name": "d",
        "citation": "none",
        "splits": [
            {
                "name": "test",
                "shardLengths": [1, "1"],
                "filepathTemplate": "{SPLIT}_{SHARD_INDEX}.{FILEFORMAT}",
            }
        ],
    }
    (tmp_path / "dataset_info.json").write_text(json.dumps(info))
    exit_code, stdout, _ = run("show", str(tmp_path))
    assert exit_code == 0
    assert "test, example 2 of 2, in test_00001.tfrecord\n" in stdout


@pytest.mark.parametrize(
    ("info", "message"),
    [
        ("", "not the metadata of a dataset: "),
        ("[]", "not the metadata of a dataset: "),
        ('{"name": "d", "splits": []}', "the dataset has no splits"),
        (
            '{"name": "d", "splits": [{"name": "a", "shardLengths": ["-1"]}]}',
            "not the metadata of a dataset: ",
        ),
        ('{"name": "d", "splits": [{"name": "a"}]}', "split 'a': every shard is missing"),
        (
            '{"name": "../d", "splits": [{"name": "a", "shardLengths": ["1"]}]}',
            "lists '../d-a.tfrecord-00000-of-00001', which is not below the dataset",
        ),
        (
            '{"name": "d", "fileFormat": "riegeli", "splits": [{"name": "a"}]}',
            "its shards have the unknown format riegeli",
        ),
    ],
)
def test_bad_metadata(info: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "dataset_info.json").write_text(info)
    assert message in show_error(tmp_path)


def test_one_example_by_its_number(dataset: Build) -> None:
    last = dataset.counts()["examples"]
    for number in (1, last // 2, last):
        exit_code, stdout, _ = run("show", str(dataset.output), "--image", str(number))
        assert exit_code == 0
        title, *rows = stdout.splitlines()
        assert title.startswith(f"train, example {number} of {last}, in ")
        name = next(row.split()[-1] for row in rows if row.startswith("image/filename"))
        assert name == f"'{dataset.examples()[number - 1].key}'"
    assert show_error(dataset.output, "--image", str(last + 1)) == (
        f"{dataset.output}: no example {last + 1} in split 'train', which has {last}; the last one "
        f"is --image {last}"
    )


def test_one_example_of_anyones_by_its_number(tmp_path: Path) -> None:
    path = write_tfrecord(tmp_path / "x.record", *(make_example({"n": n}) for n in (5, 6)))
    _, stdout, _ = run("show", str(path), "--image", "2")
    assert stdout.splitlines()[-1].split() == ["n", "int64", "1", "6"]
    assert show_error(path, "--image", "3") == (
        f"{path}: no example 3 in split 'x', which has 2; the last one is --image 2"
    )


def test_an_example_by_its_key(dataset: Build) -> None:
    """In whichever split it is, unless one is named."""
    key = dataset.examples("validation")[1].key
    _, stdout, _ = run("show", str(dataset.output), "--key", key)
    assert stdout.startswith("validation, example 2 of ")
    assert f"'{key}'" in stdout
    message = f"{dataset.output}: no example with the key"
    assert show_error(dataset.output, "--key", key, "--split", "train").startswith(message)
    assert show_error(dataset.output, "--key", f"else/{key.upper()}") == (
        f"{message} 'else/{key.upper()}'; did you mean {key!r}?"
    )
    assert show_error(dataset.output, "--key", key.replace("0", "o", 1)).startswith(
        f"{message} {key.replace('0', 'o', 1)!r}; did you mean '"
    )


def test_an_example_of_anyones_by_its_key(tmp_path: Path) -> None:
    records = [make_example({"image/filename": name}) for name in (b"a.jpg", b"b.jpg", b"b.jpg")]
    path = write_tfrecord(tmp_path / "x.record", *records)
    _, stdout, _ = run("show", str(path), "--key", "b.jpg")
    assert [line.split(",")[1] for line in stdout.splitlines() if line.startswith("x,")] == [
        " example 2",
        " example 3",
    ]
    assert show_error(path, "--key", "c.jpg").startswith(f"{path}: no example with the key 'c.jpg'")


def test_values_as_json(dataset: Build) -> None:
    words = ["show", str(dataset.output), "--split", "validation", "--limit", "2", "--json"]
    exit_code, stdout, stderr = run(*words)
    assert (exit_code, stderr, stdout.count("\n")) == (0, "", 1)
    document = json.loads(stdout)
    assert document["path"] == str(dataset.output)
    assert [split["name"] for split in document["splits"]] == ["train", "validation"]
    assert document["splits"][0]["examples"] == dataset.counts()["examples"]
    assert [example["number"] for example in document["examples"]] == [1, 2]
    for shown, written in zip(document["examples"], dataset.examples("validation"), strict=False):
        assert (shown["key"], shown["split"], shown["problems"]) == (written.key, "validation", [])
        features = {key: feature["values"] for key, feature in shown["features"].items()}
        (image,) = features.pop("image/encoded")
        assert image == {
            "bytes": len(written.encoded),
            "sha256": written.features["image/key/sha256"][0].decode(),
            "format": "jpeg",
            "width": 160,
            "height": 120,
        }
        assert features == {
            key: [
                value.decode() if isinstance(value, bytes) else pytest.approx(value)
                for value in values
            ]
            for key, values in written.features.items()
            if key != "image/encoded"
        }


def test_odd_values_as_json(tmp_path: Path) -> None:
    record = make_example(
        {"x": [0.1, float("nan"), float("-inf")], "b": [b"\0", b"\xff", b"a\n"], "none": []}
    )
    path = write_tfrecord(tmp_path / "x.record", record)
    (example,) = json.loads(run("show", str(path), "--json").stdout)["examples"]
    features = example["features"]
    assert features["x"] == {"kind": "float", "values": [0.1, "nan", "-inf"]}
    assert features["none"] == {"kind": None, "values": []}
    first, second, third = features["b"]["values"]
    assert (first["bytes"], second["bytes"], third) == (1, 1, "a\n")


def test_a_picture_is_drawn_into_a_file(dataset: Build, tmp_path: Path) -> None:
    path = tmp_path / "x.PNG"
    key = dataset.examples("validation")[1].key
    exit_code, stdout, _ = run("show", str(dataset.output), "--key", key, "--output", str(path))
    assert exit_code == 0
    with Image.open(path) as image:
        assert image.format == "PNG"
        assert stdout.startswith(f"wrote {path}, {image.width} \u00d7 {image.height} pixels: ")
        # The picture's own width, six times.
        assert image.width == 960
    drawn = path.read_bytes()
    run("show", str(dataset.output), "--split", "validation", "--image", "2", "--output", str(path))
    assert path.read_bytes() == drawn


def test_a_picture_that_cannot_be_written(dataset: Build, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    path = tmp_path / "file" / "x.png"
    exit_code, _, stderr = run("show", str(dataset.output), "--output", str(path))
    assert exit_code in (1, 2)
    assert stderr.count("\n") == 1
    assert str(path) in stderr


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of a refused build: one of its two images is not an image."""
    folder = tmp_path_factory.mktemp("refused")
    (folder / "images" / "cat").mkdir(parents=True)
    (folder / "images" / "cat" / "good.jpg").write_bytes(draw_image("JPEG", width=9, height=9))
    (folder / "images" / "cat" / "\x1b.jpg").write_bytes(b"")
    built = build("image-folder", "--images", folder / "images", output=folder / "out")
    assert built.exit_code == 3
    return folder / "out"


def test_rejects_of_a_run_that_was_refused(refused: Path, tmp_path: Path) -> None:
    exit_code, stdout, stderr = run("show", str(refused), "--rejects")
    assert (exit_code, stderr) == (0, "")
    counts, rejects = stdout.split("\n\n")
    assert [line.split() for line in counts.splitlines()[1:]] == [["train", "zero_byte", "1"]]
    assert rejects.splitlines()[1].split()[:3] == ["train", "zero_byte", r"cat/\x1b.jpg"]
    document = json.loads(run("show", str(refused), "--rejects", "--json").stdout)
    assert document["counts"] == [{"split": "train", "reason": "zero_byte", "rejects": 1}]
    assert document["rejects"][0]["key"] == "cat/\x1b.jpg"
    (folder,) = refused.glob(".staging/*/runs/*/rejects")
    assert run("show", str(folder), "--rejects").stdout == stdout
    later = folder.parents[1] / "99990101T000000.000000Z" / "rejects"
    later.mkdir(parents=True)
    (later / "train.jsonl").write_text("{")
    assert show_error(refused, "--rejects").startswith(f"{later}/train.jsonl: line 1: not a reject")
    shutil.rmtree(later.parent)


def test_rejects_of_a_dataset(dataset: Build, tmp_path: Path) -> None:
    assert run("show", str(dataset.output), "--rejects").stdout == "no rejects\n"
    folder = tmp_path / "out"
    shutil.copytree(dataset.output, folder)
    (folder / "rejects").mkdir()
    line = {"source": "s", "key": "k", "stage": "later", "reason": "new", "detail": "d"}
    lines = [json.dumps({**line, "split": split, "listed": True}) for split in ("train", "")]
    (folder / "rejects" / "train.jsonl").write_text("\n".join([*lines, lines[0]]))
    _, stdout, _ = run("show", str(folder), "--rejects", "--limit", "1")
    assert stdout.endswith("\n2 more: --limit 3 shows all\n")
    assert "(no split)  new" in stdout
    document = json.loads(run("show", str(folder), "--rejects", "--split", "", "--json").stdout)
    assert [reject["split"] for reject in document["rejects"]] == [""]
    assert show_error(tmp_path / "none", "--rejects").startswith(f"{tmp_path}/none: neither a data")


def test_the_command_line() -> None:
    assert parse_arguments(["show", "d"]) == ShowArguments(path="d")
    assert parse_arguments(["--limit", "7", "show", "--split=b", "build"]) == ShowArguments(
        path="build", split="b", limit=7
    )
