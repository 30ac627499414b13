from __future__ import annotations

import hashlib
import json
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.dataset.manifest import (
    FileEntry,
    Fingerprint,
    InputEntry,
    Manifest,
    ShardEntry,
    SplitEntry,
    decode_manifest,
    encode_manifest,
)
from shardbeam.transforms.dataset.outcome import SplitOutcome
from shardbeam.transforms.examples.features import FeatureKind, FeatureRole, FeatureSpec

URI = "/data/coco/manifest.json"


def make_manifest(*, path: str = "coco-train.tfrecord-00000-of-00001") -> Manifest:
    shard = ShardEntry(path=path, examples=2, num_bytes=123, crc32c="0123abcd")
    return Manifest(
        shardbeam="0.1.0",
        name="coco",
        version="1.0.0",
        seed=-7,
        config={"image": {"quality": 95, "background": "#ffffff"}, "features": {"drop": ["é"]}},
        codecs={"pillow": "12.3", "simplejpeg": "1.9"},
        inputs=InputEntry(images=2, fingerprint="cd" * 32),
        labels={"zebra": 1, "ant": 2},
        features=(FeatureSpec("image/encoded", FeatureKind.BYTES, False, FeatureRole.IMAGE),),
        splits={
            "train": SplitEntry(
                shards=(shard,),
                outcome=SplitOutcome(listed=3, examples=2, rejected={"truncated": 1}),
            )
        },
        files=(FileEntry(path="index/a.parquet", size_bytes=9, crc32c="89abcdef"),),
    )


def test_comes_back() -> None:
    assert decode_manifest(encode_manifest(make_manifest()), uri=URI) == make_manifest()


def test_is_sorted_indented_json_with_a_newline_at_its_end() -> None:
    text = encode_manifest(make_manifest()).decode()
    expected = json.dumps(json.loads(text), indent=2, sort_keys=True, ensure_ascii=False)
    assert text == expected + "\n"


def test_bytes_do_not_depend_on_the_order_of_mappings() -> None:
    manifest = make_manifest()
    reordered = msgspec.structs.replace(
        manifest,
        config=dict(sorted(manifest.config.items(), reverse=True)),
        labels=dict(sorted(manifest.labels.items(), reverse=True)),
    )
    assert encode_manifest(reordered) == encode_manifest(manifest)


def test_names_what_the_dataset_owns() -> None:
    assert list(make_manifest().paths()) == [
        "coco-train.tfrecord-00000-of-00001",
        "index/a.parquet",
    ]


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "not a manifest of Shardbeam: Input data was truncated"),
        (
            b"{]",
            "not a manifest of Shardbeam: JSON is malformed: object keys must be strings (byte 1)",
        ),
        (b"[]", "not a manifest of Shardbeam: Expected `object`, got `array`"),
        (
            b'{"shardbeam": 1}',
            "not a manifest of Shardbeam: Expected `str`, got `int` - at `$.shardbeam`",
        ),
        (b"{}", "not a manifest of Shardbeam: Object missing required field `shardbeam`"),
    ],
)
def test_damage_is_named(data: bytes, problem: str) -> None:
    with pytest.raises(InputError) as caught:
        decode_manifest(data, uri=URI)
    assert str(caught.value) == f"{URI}: {problem}"


def test_every_truncation_is_damage() -> None:
    data = encode_manifest(make_manifest()).rstrip()
    for length in range(0, len(data), 7):
        with pytest.raises(InputError):
            decode_manifest(data[:length], uri=URI)


def test_any_bytes_are_a_manifest_or_an_input_error() -> None:
    data = encode_manifest(make_manifest())
    mutate = random.Random(0)
    refused = 0
    for _ in range(500):
        mutated = bytearray(data)
        for _ in range(mutate.randint(1, 4)):
            mutated[mutate.randrange(len(mutated))] = mutate.randrange(256)
        try:
            decode_manifest(bytes(mutated), uri=URI)
        except InputError:
            refused += 1
    assert 0 < refused < 500


def test_deep_nesting_is_damage() -> None:
    with pytest.raises(InputError):
        decode_manifest(b'{"config": ' + b'{"a": ' * 100_000, uri=URI)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/etc/passwd",
        "../other/file",
        "a/../../b",
        "a//b",
        "./a",
        "a/",
        "gs://b/o",
        "a\0b",
        "..",
    ],
)
def test_a_path_outside_the_dataset_is_refused(path: str) -> None:
    for manifest in (
        make_manifest(path=path),
        msgspec.structs.replace(
            make_manifest(), files=(FileEntry(path=path, size_bytes=0, crc32c=""),)
        ),
    ):
        with pytest.raises(InputError, match="not below the dataset"):
            decode_manifest(encode_manifest(manifest), uri=URI)


images = st.fixed_dictionaries(
    {
        "source": st.sampled_from(["train", "validation"]),
        "key": st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
        "size_bytes": st.integers(0, 2**40),
        "sha256": st.sampled_from(["00" * 32, "ab" * 32]),
    }
)


def digest(*parts: list[dict[str, Any]]) -> tuple[str, int]:
    total = Fingerprint()
    for part in parts:
        fingerprint = Fingerprint()
        for image in part:
            fingerprint.add(**image)
        total.merge(Fingerprint.from_hex(fingerprint.hex(), count=fingerprint.count))
    return total.hex(), total.count


def test_fingerprint_is_the_sum_of_digests() -> None:
    group = [
        {"source": "a", "key": f"{number}.jpg", "size_bytes": number, "sha256": "0f" * 32}
        for number in range(20)
    ]
    texts = [f"a\0{number}.jpg\0{number}\0{'0f' * 32}" for number in range(20)]
    total = sum(int(hashlib.sha256(text.encode()).hexdigest(), 16) for text in texts)
    assert digest(group) == (f"{total % 2**256:064x}", 20)


@given(st.lists(images), st.integers(0, 10), st.randoms())
def test_fingerprints_depend_neither_on_order_nor_on_parts(
    group: list[dict[str, Any]], cut: int, shuffle: random.Random
) -> None:
    shuffled = shuffle.sample(group, len(group))
    assert digest(group) == digest(shuffled[:cut], shuffled[cut:])


@pytest.mark.parametrize(
    "change", [{"source": "b"}, {"key": "b"}, {"size_bytes": 2}, {"sha256": "01" * 32}]
)
def test_fingerprints_depend_on_every_field(change: dict[str, Any]) -> None:
    image = {"source": "a", "key": "a", "size_bytes": 1, "sha256": "00" * 32}
    assert digest([image]) != digest([image | change])


def test_fingerprints_count_duplicates() -> None:
    image = {"source": "a", "key": "a", "size_bytes": 1, "sha256": "00" * 32}
    assert digest([image, image]) != digest([image])
    assert digest([]) == ("0" * 64, 0)
    assert len(digest([image, image])[0]) == 64
