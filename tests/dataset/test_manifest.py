from __future__ import annotations

import json
import random
from pathlib import Path

import msgspec
import pytest

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.dataset.dataset_files import describe_data
from shardbeam.transforms.dataset.file_names import MANIFEST
from shardbeam.transforms.dataset.manifest import Manifest, read_manifest
from tests.support.example_builders import make_label_map
from tests.support.manifests import make_dataset, make_files, make_manifest, make_shard_result

SHARDS = [
    make_shard_result(describe_data(f"toy-train.tfrecord-{index}", b"x" * index), shard_index=index)
    for index in range(2)
]


def write(
    *, config: dict[str, object] | None = None, labels: dict[str, int] | None = None
) -> bytes:
    dataset = make_dataset(config=config or {"image": {"quality": 95}, "drop": ["é"]})
    label_map = make_label_map(labels or {"zebra": 1, "ant": 2})
    return make_files(shards=SHARDS[::-1], label_map=label_map, dataset=dataset)[MANIFEST]


def read(data: bytes, folder: Path) -> Manifest:
    (folder / MANIFEST).write_bytes(data)
    manifest = read_manifest(str(folder))
    assert manifest is not None
    return manifest


def test_lists_all_files_with_sizes_and_checksums(tmp_path: Path) -> None:
    assert read_manifest(str(tmp_path)) is None
    manifest = read(write(), tmp_path)
    shards = [msgspec.structs.asdict(shard) for shard in manifest.shards()]
    assert shards == [msgspec.structs.asdict(shard.data) for shard in SHARDS]
    assert [file.path for file in manifest.files] == [
        "README.md",
        "croissant.json",
        "dataset_info.json",
        "features.json",
        *(f"index/{shard.data.path}.parquet" for shard in SHARDS),
        "label_map.pbtxt",
        "labels.txt",
        "statistics.json",
    ]
    assert set(manifest.files) >= {shard.index for shard in SHARDS}
    assert len(list(manifest.paths())) == 11


def test_a_manifest_of_an_older_version_is_read(tmp_path: Path) -> None:
    document = json.loads(write())
    del document["checksum"]
    names = {"path", "examples", "num_bytes", "crc32c"}
    for shard in document["splits"]["train"]["shards"]:
        assert set(shard) == names
    old = {"path": "x", "examples": 2, "num_bytes": 7, "crc32c": "00c0ffee", "sha256": "0" * 64}
    document["splits"]["train"]["shards"] = [old]
    (shard,) = read(json.dumps(document).encode(), tmp_path).shards()
    assert (shard.path, shard.size_bytes, shard.crc32c) == ("x", 7, "00c0ffee")


def test_is_sorted_indented_json_with_a_newline_at_its_end() -> None:
    text = write().decode()
    expected = json.dumps(json.loads(text), indent=2, sort_keys=True, ensure_ascii=False)
    assert text == expected + "\n"
    reordered = write(
        config={"drop": ["é"], "image": {"quality": 95}}, labels={"ant": 2, "zebra": 1}
    )
    assert reordered.decode() == text


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "Input data was truncated"),
        (b"{]", "JSON is malformed: object keys must be strings (byte 1)"),
        (b"[]", "Expected `object`, got `array`"),
        (b'{"shardbeam": 1}', "Expected `str`, got `int` - at `$.shardbeam`"),
        (b"{}", "Object missing required field `shardbeam`"),
        (b'{"config": ' + b'{"a": ' * 100_000, ""),
    ],
)
def test_damage_is_named(data: bytes, problem: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read(data, tmp_path)
    expected = f"{tmp_path}/manifest.json: not a manifest of Shardbeam: {problem}"
    assert str(caught.value).startswith(expected)
    assert "build the dataset again into a new folder: --reuse" in str(caught.value)


def test_any_bytes_are_a_manifest_or_an_input_error(tmp_path: Path) -> None:
    data = write().rstrip()
    for length in range(0, len(data), 7):
        with pytest.raises(InputError):
            read(data[:length], tmp_path)
    mutate = random.Random(0)
    refused = 0
    for _ in range(500):
        mutated = bytearray(data)
        for _ in range(mutate.randint(1, 4)):
            mutated[mutate.randrange(len(mutated))] = mutate.randrange(256)
        try:
            read(bytes(mutated), tmp_path)
        except InputError:
            refused += 1
    assert 0 < refused < 500


@pytest.mark.parametrize(
    "path",
    ["", "/etc/passwd", "../other", "a/../../b", "a//b", "./a", "a/", "gs://b/o", "a\0b", ".."],
)
def test_a_path_outside_the_dataset_is_refused(path: str, tmp_path: Path) -> None:
    shard = make_shard_result(describe_data(path, b""), describe_data("index", b""))
    for data in (make_manifest(path), make_files(shards=[shard])[MANIFEST]):
        with pytest.raises(InputError, match="not below the dataset"):
            read(data, tmp_path)
