"""Every container holds the same Examples, in the same places, and damage is found in each."""

from __future__ import annotations

import io
import json
import math
import shutil
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import google_crc32c
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.readers.open.stored_dataset import open_dataset
from shardbeam.transforms.containers.base import (
    ChecksummedFile,
    ExampleSchema,
    container_names,
    find_container,
)
from shardbeam.transforms.core.errors import DamagedError, InputError
from shardbeam.transforms.core.labels import LabelMap
from shardbeam.transforms.examples.encode.encode import EncodedExample, ExampleLayout
from shardbeam.transforms.examples.encode.schema import FeaturePlan
from shardbeam.transforms.examples.features import FeatureKind, FeatureRole, FeatureSpec
from tests.support.crash_points import finished_shards, moments, record_states, restore
from tests.support.dataset import check_whole, coco_words, last_run, read_dataset, run
from tests.support.stored import stored_file

pytest.importorskip("array_record")

NAMES = ("array_record", "hf_parquet", "webdataset")
# One with places in bytes; `make test-slow` tries the others, too.
SOME = [
    pytest.param(name, marks=() if name == "webdataset" else pytest.mark.slow) for name in NAMES
]
EXTENSIONS = {"array_record": "array_record-*", "hf_parquet": "parquet", "webdataset": "tar"}
SHARDS = ("--set", "output.num_shards=3", "--set", "masks=png", "--fractions", "a=0.95,b=0.05")


def settings(name: str) -> tuple[str, ...]:
    return (*SHARDS, "--set", f"output.container={name}")


@pytest.fixture(scope="module")
def folders(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same dataset in each container, with masks, images without objects and an empty shard."""
    folder = tmp_path_factory.mktemp("containers")
    for name in container_names():
        run(*coco_words(shapes, folder / name, *settings(name)), exit_code=0)
    return {name: folder / name for name in container_names()}


def records(folder: Path) -> list[list[bytes]]:
    """The serialized Examples of each shard."""
    found = []
    for split in open_dataset(str(folder)).splits:
        container = find_container(split.container)
        found += [[record for _, record in container.read(shard)] for shard in split.shards]
    return found


def index_rows(folder: Path) -> dict[str, list[dict[str, Any]]]:
    return {
        path.name: pyarrow.parquet.read_table(path).to_pylist()
        for path in sorted((folder / "index").iterdir())
    }


def test_there_are_these_containers() -> None:
    assert container_names() == sorted([*NAMES, "tfrecord"])


@pytest.mark.parametrize("name", NAMES)
def test_the_records_are_those_of_tfrecord_files(name: str, folders: dict[str, Path]) -> None:
    expected = records(folders["tfrecord"])
    assert records(folders[name]) == expected
    assert [] in expected
    info = json.loads((folders[name] / "dataset_info.json").read_text())
    assert info["fileFormat"] == name


@pytest.mark.parametrize("name", NAMES)
def test_the_index_has_the_place_of_each_record(name: str, folders: dict[str, Path]) -> None:
    expected = list(index_rows(folders["tfrecord"]).values())
    for rows, others in zip(index_rows(folders[name]).values(), expected, strict=True):
        assert [{**row, "offset": 0} for row in rows] == [{**row, "offset": 0} for row in others]
    for split in open_dataset(str(folders[name])).splits:
        container = find_container(split.container)
        for shard in split.shards:
            rows = pyarrow.parquet.read_table(
                folders[name] / "index" / f"{shard.path}.parquet"
            ).to_pylist()
            for row in rows[::5]:
                place, record = next(container.read(shard, start=row["offset"]))
                assert place == row["offset"]
                assert google_crc32c.value(record) == row["crc32c"]


@pytest.mark.parametrize("name", SOME)
def test_the_bytes_are_the_same_and_shards_are_reused(
    name: str, folders: dict[str, Path], shapes: Path, tmp_path: Path
) -> None:
    words = coco_words(shapes, tmp_path / "out", *settings(name), "--processes", "3")
    assert run(*words).exit_code == 0
    assert read_dataset(tmp_path / "out") == read_dataset(folders[name])
    reuse = ("--reuse", str(folders[name]))
    again = coco_words(shapes, tmp_path / "again", *settings(name), *reuse)
    assert run(*again).exit_code == 0
    assert last_run(tmp_path / "again")["outcome"]["reuse"]["copied_shards"] == 6
    assert read_dataset(tmp_path / "again") == read_dataset(folders[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_killed_build_goes_on_with_its_shards(
    name: str, folders: dict[str, Path], shapes: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    words = coco_words(shapes, output, *settings(name))
    with record_states(output) as states:
        assert run(*words).exit_code == 0
    # A kill in the middle, when some shards are finished, and one in the commit.
    begun = [
        state for state in moments(states) if finished_shards(state) > 1 and not check_whole(state)
    ]
    for state in (begun[0], begun[-1]):
        restore(output, state)
        assert run(*words).exit_code == 0
        assert last_run(output)["outcome"]["resumed"]["shards"] == finished_shards(state)
        assert read_dataset(output) == read_dataset(folders[name])


@pytest.mark.parametrize("name", SOME)
def test_commands_read_it(name: str, folders: dict[str, Path], tmp_path: Path) -> None:
    folder, tfrecord = str(folders[name]), str(folders["tfrecord"])
    assert run("verify", folder, "--decode").exit_code == 0
    for words in (("show", "--limit", "2"), ("stats",), ("stats", "--recount")):
        command, *flags = words
        found, expected = run(command, folder, *flags), run(command, tfrecord, *flags)
        assert found.exit_code == 0, found.stderr
        if command == "stats":
            assert found.stdout.replace(folder, "") == expected.stdout.replace(tfrecord, "")
        else:
            assert found.stdout.count("image/encoded") == 2
    run("diff", tfrecord, folder, exit_code=0)
    report = tmp_path / "report.html"
    assert run("report", folder, "--output", str(report)).exit_code == 0
    assert report.stat().st_size > 10_000


@pytest.mark.parametrize("name", NAMES)
def test_verify_names_what_differs(
    name: str, folders: dict[str, Path], shapes: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    shutil.copytree(folders[name], output)
    shard = min(output.glob(f"*.{EXTENSIONS[name]}"))
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    found = run("verify", str(output), exit_code=5)
    assert f"{shard.name}: " in found.stdout
    # A file of that kind that people put there is no shard.
    (output / f"notes.{EXTENSIONS[name].rstrip('*')}").write_text("mine")
    stray = shard.with_name(shard.name.replace("00000-of", "00009-of"))
    stray.write_bytes(b"")
    problems = run("verify", str(output), "--quick").stdout
    assert f"{stray.name}: is not in the manifest" in problems
    assert ("notes" in problems) == (name == "array_record")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda data: data[: len(data) // 2], "bytes, but the manifest says"),
        (lambda data: b"x" + data[1:], "damaged: its checksum is"),
    ],
)
def test_damage_is_found(
    change: Any,  # noqa: ANN401  # A function of bytes.
    problem: str,
    name: str,
    folders: dict[str, Path],
    tmp_path: Path,
) -> None:
    shutil.copytree(folders[name], tmp_path / "out")
    shard = min((tmp_path / "out").glob(f"*.{EXTENSIONS[name]}"))
    shard.write_bytes(change(shard.read_bytes()))
    shown = run("show", str(tmp_path / "out"), exit_code=1)
    assert shard.name in shown.stderr
    assert problem in shown.stderr


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("content", [b"x" * 100, b"PAR1" + b"\0" * 2000 + b"PAR1", b"\0" * 700])
def test_a_file_of_another_kind_is_an_error(name: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(DamagedError, match=f"^{path}: "):
        list(find_container(name).read(stored_file(path)))


@pytest.mark.slow
def test_what_reads_tfrecords_alone_says_so(folders: dict[str, Path]) -> None:
    reading: Any = pytest.importorskip("shardbeam.readers.open.tf_data")
    for name in NAMES:
        with pytest.raises(Exception, match=f"reads no {name} files; read them with "):
            reading.load_dataset(str(folders[name]), split="a")


def test_the_config_names_what_is_missing(shapes: Path, tmp_path: Path) -> None:
    unknown = run(*coco_words(shapes, tmp_path / "out", "--set", "output.container=parquet"))
    assert unknown.exit_code == 2
    assert "output.container" in unknown.stderr
    assert "did you mean 'hf_parquet'?" in unknown.stderr


# Examples of any content


INT64 = st.integers(-(2**63), 2**63 - 1)
FLOAT32 = st.floats(width=32) | st.sampled_from([math.nan, -math.nan, -0.0, math.inf])
TEXT = st.text(st.characters(codec="utf-8")).map(str.encode)
VALUES: dict[tuple[FeatureKind, FeatureRole], st.SearchStrategy[Any]] = {
    (FeatureKind.INT64, FeatureRole.VALUE): INT64,
    (FeatureKind.FLOAT, FeatureRole.VALUE): FLOAT32,
    (FeatureKind.BYTES, FeatureRole.TEXT): TEXT,
    (FeatureKind.BYTES, FeatureRole.VALUE): st.binary(),
    (FeatureKind.BYTES, FeatureRole.DATA): st.binary(),
    (FeatureKind.BYTES, FeatureRole.IMAGE): st.binary().map(lambda data: b"\xff\xd8\xff" + data),
    (FeatureKind.BYTES, FeatureRole.MASK): st.binary(),
}
KEYS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8)


@st.composite
def some_examples(draw: st.DrawFn) -> tuple[tuple[FeatureSpec, ...], list[dict[str, list[Any]]]]:
    keys = draw(st.lists(KEYS, min_size=1, max_size=5, unique=True))
    specs, values = [], {}
    for key in sorted(keys):
        kind, role = draw(st.sampled_from(list(VALUES)))
        length = draw(st.sampled_from([None, 1, 1, 2]))
        spec = FeatureSpec(key, kind, length is None, role, length or 1)
        specs.append(spec)
        values[key] = st.lists(VALUES[kind, role], min_size=length or 0, max_size=length or 4)
    return tuple(specs), draw(st.lists(st.fixed_dictionaries(values), max_size=4))


def encoded(specs: Sequence[FeatureSpec], values: dict[str, list[Any]]) -> EncodedExample:
    layout = ExampleLayout(
        FeaturePlan(defaults={}, groups=(), constants={spec: values[spec.key] for spec in specs})
    )
    chunks = layout.serialize({}, image=b"")
    return EncodedExample(
        chunks=chunks,
        size_bytes=sum(map(len, chunks)),
        crc32c=google_crc32c.value(b"".join(chunks)),
        sha256="",
        labels="",
        objects=0,
        values={},
        image=b"",
        layout=layout,
    )


def written(
    name: str, path: Path, specs: Sequence[FeatureSpec], examples: Sequence[EncodedExample]
) -> list[int]:
    """Writes a file, and returns the examples' places."""
    schema = ExampleSchema(features=tuple(specs), label_map=LabelMap(ids={}, names={}))
    with path.open("wb") as target:
        file = ChecksummedFile(target)
        with find_container(name).writer(file, schema=schema) as write:
            return [write(example) for example in examples]


@pytest.mark.parametrize("name", container_names())
@given(content=some_examples())
def test_what_is_read_is_what_was_written(
    name: str,
    content: tuple[tuple[FeatureSpec, ...], list[dict[str, list[Any]]]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    specs, rows = content
    examples = [encoded(specs, row) for row in rows]
    path = tmp_path_factory.mktemp("x") / "x"
    places = written(name, path, specs, examples)
    expected = [(place, each.data) for place, each in zip(places, examples, strict=True)]
    assert list(find_container(name).read(stored_file(path))) == expected
    for number, place in enumerate(places):
        assert list(find_container(name).read(stored_file(path), start=place)) == expected[number:]


@pytest.mark.parametrize("name", container_names())
def test_a_writer_that_is_stopped_raises_what_stopped_it(name: str) -> None:
    spec = FeatureSpec("a", FeatureKind.INT64, False)
    schema = ExampleSchema(features=(spec,), label_map=LabelMap(ids={}, names={}))
    file = ChecksummedFile(io.BytesIO())

    def stop_midway() -> None:
        with find_container(name).writer(file, schema=schema) as write:
            write(encoded([spec], {"a": [1]}))
            raise OSError("stopped")

    with pytest.raises(OSError, match="stopped"):
        stop_midway()


class _Full(io.BytesIO):
    def write(self, data: Any, /) -> int:  # noqa: ANN401  # Any buffer.
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("name", container_names())
def test_a_full_disk_is_an_os_error(name: str) -> None:
    spec = FeatureSpec("a", FeatureKind.INT64, False)
    schema = ExampleSchema(features=(spec,), label_map=LabelMap(ids={}, names={}))
    with (
        pytest.raises(OSError, match="No space left"),
        find_container(name).writer(ChecksummedFile(_Full()), schema=schema) as write,
    ):
        write(encoded([spec], {"a": [1]}))


def test_texts_that_are_not_utf_8(tmp_path: Path) -> None:
    spec = FeatureSpec("a", FeatureKind.BYTES, False, FeatureRole.TEXT)
    example = encoded([spec], {"a": [b"\xff\xfea"]})
    (place,) = written("webdataset", tmp_path / "x.tar", [spec], [example])
    read = find_container("webdataset").read(stored_file(tmp_path / "x.tar"))
    assert list(read) == [(place, example.data)]
    with pytest.raises(InputError, match="the key 'a': a text that is not UTF-8"):
        written("hf_parquet", tmp_path / "x.parquet", [spec], [example])


@pytest.mark.parametrize("bits", [0x7FC00001, 0xFFC00000])
def test_a_nan_keeps_its_bits(bits: int, tmp_path: Path) -> None:
    (value,) = struct.unpack("<f", struct.pack("<I", bits))
    spec = FeatureSpec("a", FeatureKind.FLOAT, repeated=True)
    example = encoded([spec], {"a": [0.5, value]})
    for name in ("webdataset", "hf_parquet"):
        (place,) = written(name, tmp_path / name, [spec], [example])
        assert list(find_container(name).read(stored_file(tmp_path / name))) == [
            (place, example.data)
        ]
