"""Runs `shardbeam build` in this process, and reads the Examples that it has written."""

from __future__ import annotations

import dataclasses
import functools
import io
import json
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from shardbeam.transforms.containers.tfrecord import read_records
from shardbeam.transforms.examples.example_pb2 import Example
from tests.support.dataset import (
    run,
)

Json = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class WrittenExample:
    """An Example, its features as plain lists.

    Attributes:
        features: `{key: values}`; bytes as they are.
    """

    features: Mapping[str, list[Any]]

    @property
    def key(self) -> str:
        name: bytes = self.features["image/filename"][0]
        return name.decode()

    @property
    def encoded(self) -> bytes:
        data: bytes = self.features["image/encoded"][0]
        return data

    @property
    def picture(self) -> Image.Image:
        """The stored pixels, without applying an EXIF orientation."""
        return Image.open(io.BytesIO(self.encoded))

    @property
    def size(self) -> tuple[int, int]:
        """Width and height, as the Example gives them."""
        return self.features["image/width"][0], self.features["image/height"][0]

    @property
    def boxes(self) -> list[tuple[float, float, float, float]]:
        """`(xmin, ymin, xmax, ymax)` of each object, in fractions of the image."""
        sides = ("xmin", "ymin", "xmax", "ymax")
        columns = [self.features[f"image/object/bbox/{side}"] for side in sides]
        return list(zip(*columns, strict=True))

    @property
    def labels(self) -> list[tuple[str, int]]:
        """Text and id of each object's class."""
        texts = self.features["image/object/class/text"]
        ids = self.features["image/object/class/label"]
        return [(text.decode(), label_id) for text, label_id in zip(texts, ids, strict=True)]

    @property
    def image_labels(self) -> list[tuple[str, int]]:
        """Text and id of each class of the image."""
        texts = self.features["image/class/text"]
        ids = self.features["image/class/label"]
        return [(text.decode(), label_id) for text, label_id in zip(texts, ids, strict=True)]


@dataclasses.dataclass(frozen=True)
class Build:
    """A run of the command.

    Attributes:
        output: The dataset's folder.
        exit_code: The command's.
        summary: What `--json` printed; empty if nothing.
        stderr: What was printed on stderr.
    """

    output: Path
    exit_code: int
    summary: Json
    stderr: str

    def counts(self, split: str = "train") -> Json:
        """The summary's counts of a split."""
        counts: Json = self.summary["splits"][split]
        return counts

    @functools.cached_property
    def manifest(self) -> Json:
        manifest: Json = json.loads((self.output / "manifest.json").read_bytes())
        return manifest

    @functools.cached_property
    def info(self) -> Json:
        info: Json = json.loads((self.output / "dataset_info.json").read_bytes())
        return info

    def shards(self, split: str = "train") -> list[str]:
        """File names of a split's shards, in order."""
        return [shard["path"] for shard in self.manifest["splits"][split]["shards"]]

    def examples(self, split: str = "train") -> list[WrittenExample]:
        """A split's Examples, in order."""
        examples = []
        for shard in self.shards(split):
            with (self.output / shard).open("rb") as file:
                examples += [_plain(Example.FromString(record)) for record in read_records(file)]
        return examples

    def by_key(self, split: str = "train") -> dict[str, WrittenExample]:
        """A split's Examples by their images' keys."""
        examples = self.examples(split)
        by_key = {example.key: example for example in examples}
        assert len(by_key) == len(examples)
        return by_key

    def rejects(self) -> list[Json]:
        """All rejects, committed or not."""
        return self._lines("rejects")

    def corrections(self) -> list[Json]:
        """All corrections that are named, committed or not."""
        return self._lines("corrections")

    def _lines(self, what: str) -> list[Json]:
        folder = self.summary[what]
        files = sorted(Path(folder).iterdir()) if folder else []
        return [json.loads(line) for file in files for line in file.read_bytes().splitlines()]

    def reasons(self) -> Counter[tuple[str, str]]:
        """How often each key was rejected for each reason."""
        return Counter((reject["key"], reject["reason"]) for reject in self.rejects())


def _plain(example: Example) -> WrittenExample:
    features = {}
    for key, feature in example.features.feature.items():
        kind = feature.WhichOneof("kind")
        assert kind is not None
        features[key] = list(getattr(feature, kind).value)
    return WrittenExample(features)


def build(*words: str | Path, output: Path, exit_code: int | None = 0) -> Build:
    """Runs `shardbeam build ... --output OUTPUT`, and checks the exit code unless it is None."""
    return _run(*map(str, words), "--output", str(output), output=output, exit_code=exit_code)


def build_shapes(shapes: Path, *flags: str, output: Path) -> Build:
    """Builds the objects of `shardbeam sample shapes`."""
    return build(
        "coco",
        *("--images", shapes / "images"),
        *("--annotations", shapes / "annotations" / "instances.json"),
        *flags,
        output=output,
    )


def build_config(
    config: Json, *, folder: Path, name: str = "out", exit_code: int | None = 0
) -> Build:
    """Writes a config into a file, and builds it into `folder / name`, as `build` does."""
    output = folder / name
    complete = {"name": "pictures", **config}
    complete["output"] = {"path": str(output), **complete.get("output", {})}
    # Any JSON is YAML.
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps(complete))
    return _run(str(path), output=output, exit_code=exit_code)


def _run(*words: str, output: Path, exit_code: int | None) -> Build:
    result = run("build", *words, "--json", exit_code=exit_code)
    summary = json.loads(result.stdout) if result.stdout else {}
    return Build(output, result.exit_code, summary, result.stderr)


def write_coco(path: Path, document: Json) -> Path:
    """Writes a COCO file; `categories` and `annotations` may be left out."""
    path.write_text(json.dumps({"annotations": [], "categories": [], **document}))
    return path


def coco_document(
    images: Mapping[str, Sequence[Json]],
    *,
    categories: Mapping[str, int] | None = None,
    size: tuple[int, int] | None = None,
) -> Json:
    """A COCO document, in which ids of images and annotations count from 1.

    Args:
        images: Annotations by file name, of category 1 unless they name another.
        categories: Ids by name; None for the cat, 1.
        size: Width and height of each image; None to leave them out.
    """
    of_size = {} if size is None else {"width": size[0], "height": size[1]}
    annotated = [
        (number, each) for number, found in enumerate(images.values(), 1) for each in found
    ]
    return {
        "images": [
            {"id": number, "file_name": name, **of_size} for number, name in enumerate(images, 1)
        ],
        "annotations": [
            {"id": number, "image_id": image, "category_id": 1, **each}
            for number, (image, each) in enumerate(annotated, 1)
        ],
        "categories": [
            {"id": number, "name": name} for name, number in (categories or {"cat": 1}).items()
        ],
    }


def coco_source(folder: Path, document: Json) -> Json:
    """Writes a COCO file about `folder/images`; returns the source of a config."""
    file = write_coco(folder / "instances.json", document)
    return {"format": "coco", "images": str(folder / "images"), "annotations": [str(file)]}


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    while not condition():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


def wait_for_a_shard(process: subprocess.Popen[str], output: Path) -> None:
    """Waits until a build reports that a shard is finished."""
    told = ".staging/*/runs/*/progress/*.json"
    wait_for(
        lambda: any(b'"finished":true' in path.read_bytes() for path in output.glob(told)), process
    )
