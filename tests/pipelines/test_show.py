"""`shardbeam show` on our datasets and on other TFRecord files, whole and damaged."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.pipelines.cli.tables import PLAIN, Layout, stdout_layout
from shardbeam.pipelines.commands.show import render_example
from shardbeam.readers.open.stored_dataset import open_dataset
from shardbeam.transforms.containers.base import read_examples
from shardbeam.transforms.containers.tfrecord import frame
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.examples.example_pb2 import Example
from tests.support.archive_files import write_files
from tests.support.builds import Build, build
from tests.support.dataset import run, without_progress
from tests.support.python_runs import LIST_MODULES
from tests.support.screens import check_screen
from tests.support.tfrecords import draw_image, make_example, tfrecord, write_tfrecord


def render(features: dict[str, object]) -> list[str]:
    """Renders an Example; without the headings."""
    example = Example.FromString(make_example(features))
    return render_example(example).splitlines()[1:]


def show_error(*words: str | Path) -> str:
    return run("show", *map(str, words), exit_code=1).error


@pytest.fixture(scope="module")
def dataset(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Build:
    return build(
        *("coco", "--images", shapes / "images", "--name", "shapes"),
        *("--annotations", shapes / "annotations" / "instances.json"),
        *("--fractions", "train=0.7,validation=0.3"),
        *("--set", "output.num_shards={train: 50, validation: 1}"),
        output=tmp_path_factory.mktemp("show") / "out",
    )


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
    stdout = run(*words, exit_code=0).stdout
    assert stdout.count("\nvalidation, example ") == dataset.counts("validation")["examples"]
    assert "\ntrain, example" not in stdout


def test_a_file_of_anyones(shared_data: Path) -> None:
    path = shared_data / "datumaro" / "tf_detection_api_dataset" / "train.tfrecord"
    stdout = run("show", str(path), exit_code=0).stdout
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
    stdout = run("show", str(tmp_path), "--split", "train", "--limit", "12", exit_code=0).stdout
    assert [line.split()[0] for line in stdout.splitlines()[:4]] == [
        "split",
        "test",
        "train",
        "validation",
    ]
    shown = [line.split()[-1] for line in stdout.splitlines() if line.startswith("shard ")]
    assert shown == [str(index) for index in range(12)]


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


# {what is wrong: a file}
BAD = {
    "empty": b"",
    "short": b"short",
    "text": b"{" * 100,
    "gzip": gzip.compress(RECORDS, mtime=0),
    "cut": RECORDS[:-1],
    "cut in a header": RECORDS[: SECOND + 4],
    "another length": damaged(SECOND),
    "another byte": damaged(SECOND + 14),
    "a huge length": header(2**63),
    "no Example": tfrecord(make_example({"n": 1}), b"hello, world; no Example"),
    # A SequenceExample: what it has beside an Example's field would be lost.
    "another message": tfrecord(b"\x12\x00"),
}
KEYS = tfrecord(
    *(make_example({"image/filename": name}) for name in (b"a.jpg", b"b.jpg", b"b.jpg"))
)
_INFO = '{"name": "d", %s"splits": [{"name": "a"%s}]}'
# {what is shown: files, and the command line behind `show`}
SCENES: dict[str, tuple[dict[str, bytes | str], str]] = {
    "values": (
        {
            "x.record": tfrecord(
                make_example(
                    {
                        "n": -5,
                        "list": list(range(1000, 1120)),
                        "x": [0.1, float("nan"), 16777216.0],
                        "none": [],
                        "text": "臉書".encode(),
                        "lines": b"two\nlines\x1b[2J",
                        "markup": b"[red]x[/red]",
                        "empty": b"",
                        "bytes": b"\0\1",
                        "many": b"\xff" * 3072,
                        "long": b"a" * 1000,
                        "jpeg": b"\xff\xd8\xff\xe0",
                        "\x1b[2J": 1,
                    }
                )
            )
        },
        "x.record",
    ),
    "a number": ({"x.record": RECORDS}, "x.record --image 2"),
    "a number too many": ({"x.record": RECORDS}, "x.record --image 3"),
    "a key": ({"x.record": KEYS}, "x.record --key b.jpg"),
    "an unknown key": ({"x.record": KEYS}, "x.record --key c.jpg"),
    # A template for the shards' names, 64-bit integers as numbers, unknown keys.
    "metadata of others": (
        {
            **{f"test_{n:05}.tfrecord": tfrecord(make_example({"n": n})) for n in range(2)},
            "dataset_info.json": '{"name": "d", "citation": "none", "splits": [{"name": "test", '
            '"shardLengths": [1, "1"], "filepathTemplate": '
            '"{SPLIT}_{SHARD_INDEX}.{FILEFORMAT}"}]}',
        },
        ".",
    ),
    **{f"a bad file: {name}": ({"x.record": content}, "x.record") for name, content in BAD.items()},
    **{
        f"bad metadata: {name}": ({"dataset_info.json": info}, ".")
        for name, info in {
            "nothing": "",
            "a list": "[]",
            "no splits": '{"name": "d", "splits": []}',
            "a negative length": _INFO % ("", ', "shardLengths": ["-1"]'),
            "no shards": _INFO % ("", ""),
            "above the folder": _INFO.replace("d", "../d", 1) % ("", ', "shardLengths": ["1"]'),
            "an unknown format": _INFO % ('"fileFormat": "riegeli", ', ""),
        }.items()
    },
    "nothing there": ({}, "missing"),
    "an empty folder": ({}, "."),
    "other files": ({"notes.txt": "x"}, "."),
    "a path that clears the screen": ({}, "a\x1b[2J"),
    "a long path": ({}, "x" * 300),
    "files that would be one split": (
        {f"train-{name}.record": RECORDS for name in ("0-of-2", "1-of-2", "0-of-1")},
        ".",
    ),
    **{
        f"half a dataset: {left}": ({"d-train.tfrecord-00000-of-00001": RECORDS, left: "{}"}, ".")
        for left in ("manifest.json", ".staging/plan/commit.json")
    },
}


def test_scenes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = ""
    for number, (title, (files, words)) in enumerate(SCENES.items()):
        folder = write_files(tmp_path / str(number), files)
        folder.mkdir(exist_ok=True)
        monkeypatch.chdir(folder)
        result = run("show", *words.split())
        assert result.stderr.count("\n") == result.exit_code
        shown += f"--- {title}\n{result.stdout}{result.stderr}"
    check_screen("show", shown)


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
    _, stdout, stderr = run("show", str(path), exit_code=1)
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
    assert (result.returncode, without_progress(result.stderr)) == (0, "")


def test_a_terminal_has_a_width(monkeypatch: pytest.MonkeyPatch) -> None:
    assert stdout_layout() == PLAIN
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "50")
    assert stdout_layout() == Layout(columns=50, styled=True)


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


def test_one_example_by_its_number(dataset: Build) -> None:
    last = dataset.counts()["examples"]
    for number in (1, last // 2, last):
        stdout = run("show", str(dataset.output), "--image", str(number), exit_code=0).stdout
        title, *rows = stdout.splitlines()
        assert title.startswith(f"train, example {number} of {last}, in ")
        name = next(row.split()[-1] for row in rows if row.startswith("image/filename"))
        assert name == f"'{dataset.examples()[number - 1].key}'"
    assert show_error(dataset.output, "--image", str(last + 1)) == (
        f"{dataset.output}: no example {last + 1} in split 'train', which has {last}; the last one "
        f"is --image {last}"
    )


def test_an_example_by_its_key(dataset: Build) -> None:
    """In whichever split it is, unless one is named."""
    key = dataset.examples("validation")[1].key
    stdout = run("show", str(dataset.output), "--key", key).stdout
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


@pytest.mark.parametrize("name", ["x.svg", "x.HTML"])
def test_a_picture_is_drawn_into_a_file(name: str, dataset: Build, tmp_path: Path) -> None:
    path = tmp_path / name
    key = dataset.examples("validation")[1].key
    exit_code, stdout, _ = run("show", str(dataset.output), "--key", key, "--output", str(path))
    assert exit_code == 0
    drawn = path.read_text()
    assert drawn.startswith("<svg " if name == "x.svg" else "<!doctype html>")
    assert f": {key}</text>" in drawn
    # The picture's own width, six times.
    (height,) = re.findall('width="960" height="([0-9]+)" viewBox', drawn)
    assert stdout.startswith(f"wrote {path}, 960 \u00d7 {height} pixels: ")
    run("show", str(dataset.output), "--split", "validation", "--image", "2", "--output", str(path))
    assert path.read_text() == drawn
    # Another file of this ending is not replaced.
    path.write_text("<svg/>")
    words = "show", str(dataset.output), "--image", "1", "--output", str(path)
    assert "name another file" in run(*words, exit_code=2).error


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of a refused build: one of its two images is not an image."""
    folder = tmp_path_factory.mktemp("refused")
    (folder / "images" / "cat").mkdir(parents=True)
    (folder / "images" / "cat" / "good.jpg").write_bytes(draw_image("JPEG", width=9, height=9))
    (folder / "images" / "cat" / "\x1b.jpg").write_bytes(b"")
    build("image-folder", "--images", folder / "images", output=folder / "out", exit_code=3)
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
    stdout = run("show", str(folder), "--rejects", "--limit", "1").stdout
    assert stdout.endswith("\n2 more: --limit 3 shows all\n")
    assert "(no split)  new" in stdout
    document = json.loads(run("show", str(folder), "--rejects", "--split", "", "--json").stdout)
    assert [reject["split"] for reject in document["rejects"]] == [""]
    assert show_error(tmp_path / "none", "--rejects").startswith(f"{tmp_path}/none: neither a data")
