"""The files by which TensorFlow Datasets loads a directory: `tfds.builder_from_directory`.

Format: JSON of the protos `DatasetInfo` and `Feature` (tensorflow_datasets/core/proto), where
64-bit integers are strings; class names as `ClassLabel.load_metadata` reads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from shardbeam.transforms.core.labels import LabelMap
from shardbeam.transforms.dataset.label_files import label_line, labels_by_id, labels_txt
from shardbeam.transforms.examples.features import FeatureKind, FeatureRole, FeatureSpec

_FEATURES_PACKAGE = "tensorflow_datasets.core.features"
_DTYPES = {FeatureKind.BYTES: "string", FeatureKind.INT64: "int64", FeatureKind.FLOAT: "float32"}


class SplitSize(NamedTuple):
    """What TFDS knows of a split.

    Attributes:
        split: Its name.
        shard_lengths: Examples of each shard, in the shards' order.
        num_bytes: Bytes of all shards.
    """

    split: str
    shard_lengths: Sequence[int]
    num_bytes: int


def dataset_info_json(
    *,
    name: str,
    version: str,
    description: str,
    splits: Iterable[SplitSize],
    file_name: str = "",
    file_format: str = "tfrecord",
) -> bytes:
    """Renders `dataset_info.json`.

    Args:
        name: The dataset's name, which shard files begin with.
        version: `major.minor.patch`.
        description: A text for people.
        splits: The splits.
        file_name: Name of a split's only file, in which `{split}` may stand for the split;
            empty where shards are named by TFDS's default template.
        file_format: TFDS's name of the shards' container.
    """
    return _json(
        {
            "name": name,
            "version": version,
            "description": description,
            "fileFormat": file_format,
            "splits": [
                {
                    "name": split.split,
                    "shardLengths": [str(length) for length in split.shard_lengths],
                    "numBytes": str(split.num_bytes),
                    **(
                        {"filepathTemplate": file_name.replace("{split}", "{SPLIT}")}
                        if file_name
                        else {}
                    ),
                }
                for split in splits
            ],
        }
    )


def features_json(*, schema: Iterable[FeatureSpec], label_map: LabelMap) -> bytes:
    """Renders `features.json`.

    Args:
        schema: The features of every Example.
        label_map: The dataset's labels. Where their ids are 0 to n - 1, labels are
            `ClassLabel`s, whose names stand in the files of `class_name_files`; otherwise
            integers.
    """
    num_classes = len(label_map.ids) if _fits_class_label(label_map) else None
    features = {spec.key: _feature(spec, num_classes=num_classes) for spec in schema}
    return _json(_node("features_dict.FeaturesDict", featuresDict={"features": features}))


def class_name_files(*, schema: Iterable[FeatureSpec], label_map: LabelMap) -> dict[str, bytes]:
    """Renders the names of `ClassLabel`s: `{path: content}`; none where labels are integers."""
    if not _fits_class_label(label_map):
        return {}
    return {
        class_names_path(spec): labels_txt(label_map)
        for spec in schema
        if spec.role is FeatureRole.LABEL
    }


def class_names_path(spec: FeatureSpec) -> str:
    """Names the file of a `ClassLabel`'s names, relative to the dataset's folder."""
    return f"{spec.key.replace('/', '.')}.labels.txt"


def _fits_class_label(label_map: LabelMap) -> bool:
    """Says whether ids are 0 to n - 1, and names survive their files, and TFDS's stripping."""
    labels = labels_by_id(label_map)
    return bool(labels) and all(
        label_id == index and name == label_line(name).strip()
        for index, (name, label_id) in enumerate(labels)
    )


def _feature(spec: FeatureSpec, *, num_classes: int | None) -> dict[str, Any]:
    if spec.role is FeatureRole.IMAGE:
        # Without an encoding TFDS tells JPEG from PNG by the bytes; gray comes as three channels.
        node = _node("image_feature.Image", image={"dtype": "uint8", "shape": _shape(-1, -1, 3)})
    elif spec.role is FeatureRole.MASK:
        node = _node("image_feature.Image", image={"dtype": "uint8", "shape": _shape(-1, -1, 1)})
    elif spec.role is FeatureRole.MASK_16:
        # TFDS takes 16 bits of PNGs only.
        image = {"dtype": "uint16", "shape": _shape(-1, -1, 1), "encodingFormat": "png"}
        node = _node("image_feature.Image", image=image)
    elif spec.role in (FeatureRole.TEXT, FeatureRole.LABEL_TEXT):
        node = _node("text_feature.Text", text={})
    elif spec.role is FeatureRole.LABEL and num_classes is not None:
        node = _node("class_label_feature.ClassLabel", classLabel={"numClasses": str(num_classes)})
    else:
        shape = _shape() if spec.length == 1 else _shape(spec.length)
        tensor = {"dtype": _DTYPES[spec.kind], "shape": shape, "encoding": "none"}
        node = _node("tensor_feature.Tensor", tensor=tensor)
    if spec.repeated:
        node = _node("sequence_feature.Sequence", sequence={"feature": node, "length": "-1"})
    return node


def _node(class_name: str, **content: object) -> dict[str, Any]:
    return {"pythonClassName": f"{_FEATURES_PACKAGE}.{class_name}", **content}


def _shape(*dimensions: int) -> dict[str, list[str]]:
    return {"dimensions": [str(dimension) for dimension in dimensions]}


def _json(value: object) -> bytes:
    compact = msgspec.json.encode(value, order="sorted")
    return msgspec.json.format(compact, indent=2) + b"\n"
