"""`verify` finds damage of every kind, and nothing in an undamaged dataset."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shardbeam.readers.verify.verify import plan_checks
from shardbeam.transforms.containers.tfrecord import OVERHEAD_BYTES
from shardbeam.transforms.core.errors import DamagedError, InputError
from shardbeam.transforms.dataset.index import decode_index
from shardbeam.transforms.shards.verify_shard import CheckReport, check_shard, merge_reports
from tests.support.dataset import coco_words, run
from tests.support.indexes import render_index
from tests.support.stored import before_each
from tests.support.tfrecords import tfrecord, write_tfrecord

SETTINGS = ("--set", "output.num_shards=3")
ARRAY_RECORD = ("--set", "output.container=array_record")
# `make damages` does 1,000.
DAMAGES = int(os.environ.get("SHARDBEAM_DAMAGES", "32"))


@pytest.fixture(scope="module", params=[(), ARRAY_RECORD], ids=["tfrecord", "array_record"])
def settings(request: pytest.FixtureRequest) -> tuple[str, ...]:
    if request.param:
        pytest.importorskip("array_record")
    return (*SETTINGS, *request.param)


@pytest.fixture(scope="module")
def whole(
    shapes: Path, settings: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    output = tmp_path_factory.mktemp("whole") / "dataset"
    assert run(*coco_words(shapes, output, *settings)).exit_code == 0
    return output


@pytest.fixture(scope="module")
def other(
    shapes: Path, settings: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The same images and files, with two classes exchanged."""
    folder = tmp_path_factory.mktemp("other")
    source = folder / "shapes"
    shutil.copytree(shapes, source)
    annotations = source / "annotations" / "instances.json"
    text = annotations.read_text()
    text = text.replace('"circle"', '"CIRCLE"').replace('"square"', '"circle"')
    annotations.write_text(text.replace('"CIRCLE"', '"square"'))
    assert run(*coco_words(source, folder / "dataset", *settings)).exit_code == 0
    return folder / "dataset"


def verify(path: Path | str, *, decode: bool = False) -> CheckReport:
    checks = plan_checks(str(path))
    found = CheckReport(count=len(checks.problems), problems=checks.problems)
    return merge_reports([found, *(check_shard(check, decode=decode) for check in checks.shards)])


def lines(report: CheckReport) -> list[str]:
    return [str(problem) for problem in report.problems]


# Damage


class Damage:
    """Damages a copy of a dataset at random."""

    def __init__(self, folder: Path, *, other: Path, random: random.Random) -> None:
        self.folder = folder
        self.other = other
        self.random = random
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        # A run's record of itself is not part of the dataset.
        self.files = [path for path in files if "runs" not in path.parts]
        self.shards = [path for path in self.files if "-of-00003" in path.name]
        self.data = [path for path in self.shards if path.suffix != ".parquet"]
        self.indexes = [path for path in self.shards if path.suffix == ".parquet"]

    def bit(self) -> None:
        path = self.random.choice(self.files)
        data = bytearray(path.read_bytes())
        data[self.random.randrange(len(data))] ^= 1 << self.random.randrange(8)
        path.write_bytes(data)

    def cut(self) -> None:
        path = self.random.choice(self.files)
        path.write_bytes(path.read_bytes()[: self.random.randrange(path.stat().st_size)])

    def swap(self) -> None:
        one, two = self.random.sample(self.data, 2)
        first, second = one.read_bytes(), two.read_bytes()
        one.write_bytes(second)
        two.write_bytes(first)

    def double(self) -> None:
        one, two = self.random.sample(self.data, 2)
        copy = two if self.random.random() < 0.5 else two.with_name(f"copy-{two.name}")
        shutil.copy(one, copy)

    def drop(self) -> None:
        self.random.choice(self.files).unlink()

    def manifest(self) -> None:
        path = self.folder / "manifest.json"
        document = json.loads(path.read_bytes())
        holder, key = self.random.choice(_leaves(document))
        value = holder[key]
        holder[key] = f"{value}x" if isinstance(value, str) else (value or 0) + 1
        path.write_text(json.dumps(document, indent=2, sort_keys=True) + "\n")

    def index(self) -> None:
        path = self.random.choice(self.indexes)
        shutil.copy(self.other / path.relative_to(self.folder), path)
        # The other's is the same, byte for byte: images and places are.
        one, two = self.random.sample(self.indexes, 2)
        shutil.copy(one, two)

    def exchange(self) -> None:
        path = self.random.choice(self.data)
        shutil.copy(self.other / path.relative_to(self.folder), path)


def _leaves(value: Any, holder: Any = None, key: Any = None) -> list[tuple[Any, Any]]:  # noqa: ANN401
    if isinstance(value, dict):
        return [leaf for name, child in value.items() for leaf in _leaves(child, value, name)]
    if isinstance(value, list):
        return [leaf for place, child in enumerate(value) for leaf in _leaves(child, value, place)]
    return [(holder, key)]


KINDS: dict[str, Callable[[Damage], None]] = {
    name: value for name, value in vars(Damage).items() if not name.startswith("_")
}


@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_found(kind: str, whole: Path, other: Path, tmp_path: Path) -> None:
    for seed in range(max(1, DAMAGES // len(KINDS) // 2)):
        folder = tmp_path / str(seed)
        shutil.copytree(whole, folder)
        KINDS[kind](Damage(folder, other=other, random=random.Random(f"{kind} {seed}")))
        assert verify(folder).count > 0, seed
        shutil.rmtree(folder)


def test_nothing_is_found_in_a_whole_dataset(whole: Path, other: Path) -> None:
    for dataset in (whole, other):
        report = verify(dataset, decode=True)
        assert (lines(report), report.shards, report.examples) == ([], 3, 40)


# Messages


def shard_of(folder: Path) -> Path:
    return sorted(folder.glob("*train*"))[0]


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copy"))


@pytest.fixture
def tfrecord_only(settings: tuple[str, ...]) -> None:
    if ARRAY_RECORD[1] in settings:
        pytest.skip("about TFRecord files")


@pytest.mark.usefixtures("tfrecord_only")
def test_a_damaged_record_has_a_place_and_a_key_and_the_others_are_read(copy: Path) -> None:
    shard = shard_of(copy)
    data = bytearray(shard.read_bytes())
    data[200] ^= 1
    shard.write_bytes(data)
    report = verify(copy)
    assert len(report.problems) == 1
    assert report.problems[0].file == shard.name
    assert report.problems[0].place == "byte 0"
    assert report.problems[0].key.endswith(".jpg")
    assert "the checksum of a record's data does not match" in report.problems[0].problem
    assert report.examples == 39


@pytest.mark.usefixtures("tfrecord_only")
def test_a_record_that_was_exchanged_with_its_checksums_is_named(copy: Path) -> None:
    shard = shard_of(copy)
    data = shard.read_bytes()
    length = int.from_bytes(data[:8], "little")
    record = data[12 : 12 + length].replace(b"\xff\xd9", b"\xff\xd8", 1)
    shard.write_bytes(tfrecord(record) + data[length + OVERHEAD_BYTES :])
    problems = "\n".join(lines(verify(copy, decode=True)))
    assert f"{shard.name}: byte 0: " in problems
    assert "the image's SHA-256 is" in problems
    assert "'image/encoded' cannot be decoded: " in problems
    assert "its checksum is" in problems


def test_an_index_with_the_checksum_of_another_example(copy: Path) -> None:
    index = next((copy / "index").glob("*.parquet"))
    rows = list(decode_index(index.read_bytes(), uri="index"))
    assert rows[0].crc32c is not None
    rows[0] = msgspec.structs.replace(rows[0], crc32c=rows[0].crc32c ^ 1)
    index.write_bytes(render_index(rows))
    problems = lines(verify(copy))
    assert problems[0].startswith(f"index/{index.name}: was changed: its checksum is")
    assert problems[1].endswith(f"{rows[0].key}: the index has the checksum of another Example")
    assert len(problems) == 2


def test_missing_and_unlisted_files_are_named(copy: Path) -> None:
    shard = shard_of(copy)
    shard.rename(copy / f"old-{shard.name}")
    (copy / "README.md").write_text("mine")
    assert lines(verify(copy)) == [
        f"{shard.name}: is missing",
        f"old-{shard.name}: is not in the manifest: left by another run, or copied; move it "
        "elsewhere",
    ]


def test_without_dataset_info(copy: Path) -> None:
    (copy / "dataset_info.json").unlink()
    assert lines(verify(copy)) == ["dataset_info.json: is missing: readers see no dataset"]


def test_a_cut_shard_is_one_file_with_problems(copy: Path) -> None:
    shard = shard_of(copy)
    shard.write_bytes(shard.read_bytes()[:-1])
    problems = lines(verify(copy))
    assert 2 <= len(problems) <= 3
    assert all(line.startswith(f"{shard.name}: ") for line in problems)


@pytest.mark.parametrize("value", [{"container": "foo"}, 5])
def test_an_edited_container(copy: Path, value: object) -> None:
    document = json.loads((copy / "manifest.json").read_bytes())
    document["config"]["output"] = value
    (copy / "manifest.json").write_text(json.dumps(document))
    assert "manifest.json: was changed after it was written" in lines(verify(copy))[0]


@pytest.mark.parametrize("suffix", ["", ".parquet"])
def test_a_file_that_cannot_be_read_is_no_damage(
    copy: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(uri: str) -> None:
        if uri.endswith(f"-of-00003{suffix}"):
            raise OSError(5, "Input/output error")

    before_each(monkeypatch, "read", fail)
    with pytest.raises(InputError, match="cannot be read: Input/output error") as raised:
        verify(copy)
    assert not isinstance(raised.value, DamagedError)


@pytest.mark.usefixtures("tfrecord_only")
def test_tfrecord_files_of_others(tmp_path: Path, whole: Path) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir()
    data = shard_of(whole).read_bytes()
    (folder / "train-00000-of-00001.tfrecord").write_bytes(data)
    assert lines(verify(folder, decode=True)) == []
    (folder / "train-00000-of-00001.tfrecord").write_bytes(data[:-1])
    write_tfrecord(folder / "val.tfrecord", b"no Example")
    problems = lines(verify(folder))
    assert len(problems) == 3
    assert problems[0].startswith("train-00000-of-00001.tfrecord: byte ")
    assert "cut off within a record" in problems[0]
    assert problems[1].endswith("the rest was not checked: no index says where it begins")
    assert problems[2].startswith("val.tfrecord: byte 0: the record of 10 bytes is not a tf.train")


def test_no_dataset_at_all(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing is there"):
        plan_checks(str(tmp_path / "nowhere"))


def test_an_index_of_more_rows_than_the_shard_has_examples(copy: Path) -> None:
    """A file of 0.5 MB may have ten million."""
    index = next((copy / "index").glob("*.parquet"))
    rows = list(decode_index(index.read_bytes(), uri="index"))
    index.write_bytes(render_index([*rows, rows[0]]))
    assert [each for each in lines(verify(copy)) if "declares" in each] == [
        f"index/{index.name}: declares {len(rows) + 1} rows; expected at most {len(rows)}"
    ]


def test_an_index_that_is_longer_than_any(copy: Path) -> None:
    index = next((copy / "index").glob("*.parquet"))
    os.truncate(index, 30 << 30)
    assert any(
        each.startswith(f"index/{index.name}: has more than 1,073,741,824 bytes")
        for each in lines(verify(copy))
    )


def test_what_is_no_file_is_named_as_such(copy: Path) -> None:
    (copy / "labels.txt").unlink()
    os.mkfifo(copy / "labels.txt")
    assert lines(verify(copy)) == ["labels.txt: is not a regular file, or is a broken link"]
