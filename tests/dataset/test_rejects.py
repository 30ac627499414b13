from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
import pytest

from shardbeam.configs.decoding import JsonDecoder
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.core.records import Reject
from shardbeam.transforms.dataset import rejects
from shardbeam.transforms.dataset.dataset_files import describe_data
from shardbeam.transforms.dataset.rejects import rejects_path, write_rejects


def reject(key: str, *, listed: bool = True, split: str = "train", detail: str = "d") -> Reject:
    return Reject(
        split=split,
        source="s",
        key=key,
        stage="encode",
        reason=Reason.TRUNCATED if listed else Reason.MISSING_IMAGE,
        detail=detail,
        listed=listed,
    )


def test_they_are_written_sorted_whatever_their_order(tmp_path: Path) -> None:
    root = str(tmp_path)
    several = [reject("b"), reject("a"), reject("c", listed=False), reject("a", detail="c")]
    path = "rejects/train.jsonl"
    one = write_rejects("train", path, several, root=root, folder="runs/run")
    content = (tmp_path / one.staged / path).read_bytes()
    again = write_rejects("train", path, reversed(several), root=root, folder="runs/run")
    assert again == one
    lines = [JsonDecoder(Reject).decode(line) for line in content.splitlines()]
    assert [(line.key, line.detail) for line in lines] == [
        ("a", "c"),
        ("a", "d"),
        ("b", "d"),
        ("c", "d"),
    ]
    assert one.counts == {"truncated": 3, "missing_image": 1}
    assert (one.split, one.unlisted) == ("train", 1)
    assert one.file == describe_data(path, content)


def test_what_the_gate_has_to_know_of_them(tmp_path: Path) -> None:
    kinds = {
        Reason.TRUNCATED: "edcba",
        Reason.OBJECTS_LOST: "hgf",
        Reason.SIZE_MISMATCH: "i",
        Reason.MISSING_IMAGE: "k",
    }
    several = [
        msgspec.structs.replace(
            reject(key),
            reason=reason,
            source="s/1" if key == "a" else "s",
            stage="join" if reason is Reason.MISSING_IMAGE else "encode",
        )
        for reason, keys in kinds.items()
        for key in keys
    ]
    one = write_rejects("train", "rejects/train.jsonl", several, root=str(tmp_path), folder="r")
    # The first of each kind that the default may allow, and no others.
    assert [each.key for each in one.allowed] == ["b", "c", "d", "f", "g", "h"]
    assert one.unwritten == {"s": 8, "s/1": 1}


def test_no_file_grows_with_the_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejects, "_REJECTS_PER_FILE", 100)
    # All belong to one image and differ only in their details.
    many = [reject("a", detail=f"row {row}") for row in range(1000)]
    for number, files in ((1, 1), (100, 1), (101, 2), (1000, 10)):
        counts = {"train": number, "test": 5}
        sizes = Counter(rejects_path(each, counts=counts) for each in many[:number])
        names = [f"train-{index:05d}-of-{files:05d}" for index in range(files)]
        assert set(sizes) == {f"rejects/{name}.jsonl" for name in names if files > 1} or (
            set(sizes) == {"rejects/train.jsonl"}
        )
        assert max(sizes.values()) < 150
    few = {"": 1, "test": 5}
    assert rejects_path(reject("a", split="test"), counts=few) == "rejects/test.jsonl"
    assert rejects_path(reject("a", split=""), counts=few) == "rejects/no-split.jsonl"
