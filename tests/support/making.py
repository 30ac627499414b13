"""Makes formats as a build does, and small inputs for them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from PIL import Image

from shardbeam.configs.convert import convert
from shardbeam.configs.keys import Location
from shardbeam.configs.schema import Source
from shardbeam.transforms.core.records import (
    AnnotationEntry,
    Category,
    ImageAnnotations,
    ObjectAnnotation,
    Value,
    encode_annotations,
)
from shardbeam.transforms.formats.base import Format, Kind, find_format
from shardbeam.transforms.storage.base import Storage
from tests.support.builds import Json


def make_format(name: str, **keys: Any) -> Format:  # noqa: ANN401  # Whatever a config holds.
    """Makes a format from a config's keys and from keys that the plan sets (`_masks`)."""
    planned = {key: value for key, value in keys.items() if key.startswith("_")}
    given = {key: value for key, value in keys.items() if key not in planned and value is not None}
    made = convert({"format": name, **given}, Source, find_format=find_format)
    assert isinstance(made, Format)
    return msgspec.structs.replace(made, **planned)


ML_USE = "aiplatform.googleapis.com/ml_use"


def write_lines(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def vertex(uri: object, *, use: str, **annotations: Any) -> dict[str, Any]:  # noqa: ANN401
    return {"imageGcsUri": str(uri), **annotations, "dataItemResourceLabels": {ML_USE: use}}


def draw(folder: Path, image: Json, name: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (image["width"], image["height"]), "gray").save(path, "JPEG")


def entry(
    key: str = "a.jpg",
    *,
    labels: tuple[str, ...] = (),
    objects: tuple[ObjectAnnotation, ...] = (),
    values: Mapping[str, tuple[Value, ...]] | None = None,
    position: int = 0,
    split: str = "",
) -> AnnotationEntry:
    annotations = ImageAnnotations(
        image_id=key, labels=labels, objects=objects, values=values or {}
    )
    return AnnotationEntry(
        key=key,
        annotations=encode_annotations(annotations),
        file_index=0,
        position=position,
        split=split,
    )


class Good(Format, frozen=True, kw_only=True):
    """Lines of labels, one an image; each test breaks something."""

    kinds = frozenset({Kind.CLASSIFICATION})

    file: Location
    images: Location

    def annotation_files(self) -> Sequence[str]:
        return (self.file,)

    def read_annotations(
        self, *, storage: Storage, file_index: int
    ) -> Iterator[AnnotationEntry | Category]:
        text = storage.read(self.file).decode("utf-8", "replace")
        yield from self.read(text)

    def read(self, text: str) -> Iterator[AnnotationEntry | Category]:
        for number, line in enumerate(text.split("\n")):
            key, _, label = line.partition(",")
            if key.isalnum() and label.isalnum():
                yield Category(name=label)
                yield entry(f"{key}.jpg", labels=(label,), position=number)
