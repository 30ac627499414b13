"""JSON Lines end to end: Vertex AI's image import, and tables of one's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardbeam.transforms.formats.json_lines import JsonLinesFormat
from tests.support.builds import build
from tests.support.dataset import read_dataset
from tests.support.making import vertex, write_images, write_lines

# TFDS's use of protobuf.
pytestmark = pytest.mark.filterwarnings(r"ignore:label\(\) is deprecated")


def test_vertex_labels(tmp_path: Path) -> None:
    root = write_images(tmp_path / "images", "a.jpg", "b.jpg", "c.jpg", "d.jpg")
    rows = [
        vertex(root / "a.jpg", use="training", classificationAnnotation={"displayName": "rose"}),
        vertex(root / "b.jpg", use="validation", classificationAnnotation={"displayName": "oak"}),
        vertex(root / "c.jpg", use="test", classificationAnnotation={"displayName": "rose"}),
        vertex("gs://b/d.jpg", use="test", classificationAnnotation={"displayName": "rose"}),
    ]
    built = build(
        "jsonl",
        *("--manifest", write_lines(tmp_path / "import.jsonl", rows), "--image-root", root),
        *("--set", "rejects.max_ratio=0.5"),
        output=tmp_path / "out",
    )
    assert built.exit_code == 0, built.stderr
    assert {
        split: {key: each.image_labels for key, each in built.by_key(split).items()}
        for split in ("train", "validation", "test")
    } == {
        "train": {"a.jpg": [("rose", 1)]},
        "validation": {"b.jpg": [("oak", 0)]},
        "test": {"c.jpg": [("rose", 1)]},
    }
    assert built.reasons() == {("gs://b/d.jpg", "outside_roots"): 1}
    (reject,) = built.rejects()
    assert reject["split"] == "test"

    tfds = pytest.importorskip("tensorflow_datasets")
    builder = tfds.builder_from_directory(str(built.output))
    (example,) = tfds.as_numpy(builder.as_dataset("test"))
    assert example["image/class/text"].tolist() == [b"rose"]


def test_a_table_gives_the_same_bytes_whatever_the_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{number % 3}/{number}.jpg" for number in range(30)]
    root = write_images(tmp_path / "images", *names)
    rows = [
        {"file_name": name, "labels": [name[0], "all"], "score": index / 8, "tags": ["x"] * index}
        for index, name in enumerate(names)
    ]
    manifest = write_lines(tmp_path / "metadata.jsonl", rows)
    for name, chunk_bytes in (("whole", 32 << 20), ("parts", 100)):
        monkeypatch.setattr(JsonLinesFormat, "chunk_bytes", chunk_bytes)
        built = build("jsonl", "--manifest", manifest, "--image-root", root, output=tmp_path / name)
        assert built.exit_code == 0, built.stderr
        assert built.counts()["examples"] == 30
    assert read_dataset(tmp_path / "whole") == read_dataset(tmp_path / "parts")
    example = built.by_key()["1/7.jpg"]
    assert [text for text, _ in example.image_labels] == ["1", "all"]
    assert example.features["score"] == [7 / 8]
    assert example.features["tags"] == [b"x"] * 7
