"""Renders the files that `finish` writes: metadata, labels, and the manifest.

TensorFlow Datasets loads a directory by its `dataset_info.json` and `features.json`
(`tfds.builder_from_directory`). They are JSON of the protos `DatasetInfo` and `Feature`
(tensorflow_datasets/core/proto), where 64-bit integers are strings. Class names are written as
`ClassLabel.load_metadata` reads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from shardbeam.configs.schema import DuplicatesConfig, ExpectConfig
from shardbeam.transforms.containers.base import find_container
from shardbeam.transforms.core.box_formats import BoxReading
from shardbeam.transforms.core.labels import LABEL_MAP, LABELS, LabelMap, Skeletons
from shardbeam.transforms.dataset.collectors.statistics import Statistics
from shardbeam.transforms.dataset.dataset_files import DatasetFile, ShardEntry, describe_data
from shardbeam.transforms.dataset.file_names import (
    CARD,
    CROISSANT,
    DATASET_INFO,
    FEATURES,
    MANIFEST,
    STATISTICS,
)
from shardbeam.transforms.dataset.input_counts import add_fingerprints
from shardbeam.transforms.dataset.manifest import encode_manifest
from shardbeam.transforms.dataset.outcome import DuplicateCounts, SplitOutcome
from shardbeam.transforms.dataset.rejects import corrections_path
from shardbeam.transforms.dataset.shard_names import FileNaming
from shardbeam.transforms.dataset.shard_result import ShardResult
from shardbeam.transforms.dataset.statistics_file import encode_statistics
from shardbeam.transforms.examples.features import CLASS_MAP, FeatureKind, FeatureRole, FeatureSpec

_FEATURES_PACKAGE = "tensorflow_datasets.core.features"
_DTYPES = {FeatureKind.BYTES: "string", FeatureKind.INT64: "int64", FeatureKind.FLOAT: "float32"}
_TFDS_NUMBER = "{SHARD_INDEX}-of-{NUM_SHARDS}"
# Unicode's category Cc, and the separators of lines and paragraphs.
_CONTROL_CHARACTERS = [chr(code) for code in (*range(32), *range(127, 160), 0x2028, 0x2029)]
_LINE_ESCAPES = str.maketrans(
    {char: char.encode("unicode_escape").decode() for char in _CONTROL_CHARACTERS}
)
_PBTXT_ESCAPES = str.maketrans(
    {char: "".join(f"\\{byte:03o}" for byte in char.encode()) for char in _CONTROL_CHARACTERS}
    | {"\\": "\\\\", '"': '\\"'}
)


class DatasetSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The config's settings for the dataset as a whole.

    Attributes:
        name: Its name.
        version: Its version, `x.y.z`.
        description: A text for readers.
        license: The license of the data, for readers; empty if the config names none.
        source: Where the data comes from, for readers; empty if the config does not say it.
        splits: The splits' names, in the config's order.
        seed: Key of the hash that decided split, shard and order.
        max_reject_ratio: The greatest share of a split's inputs that may be rejected; None if the
            config does not say it.
        features: The features of every Example.
        config: The config as the manifest keeps it, without input and output roots.
        codecs: `{library: version}` of the libraries that decide bytes.
        shardbeam: Shardbeam's version.
        naming: How the shards' files are named.
        container: The kind of the shards' files (`containers.base.find_container`).
        objects: Whether the dataset must hold objects.
        sources: The sources' names.
        duplicates: Which duplicates are looked for, and which are refused.
        excluded: How many images the file `exclude` names.
        expect: What the splits must hold.
        ignore: Kinds of findings that are neither shown nor refused.
        warnings: The formats' warnings.
        absent: Source names of the classes that `warnings` already calls absent.
        file_per_image: Whether a source has an annotation file for each image.
        box_readings: `{source: how its boxes are read}`, without sources whose format knows.
        classifies: Whether every label is of a whole image, and none of an object.
        has_images: Whether Examples hold images, and are not rows of a table alone.
    """

    name: str
    version: str
    description: str
    splits: tuple[str, ...]
    seed: int
    max_reject_ratio: float | None
    features: tuple[FeatureSpec, ...]
    config: Mapping[str, Any]
    codecs: Mapping[str, str]
    shardbeam: str
    naming: FileNaming
    license: str = ""
    source: str = ""
    container: str = "tfrecord"
    objects: bool = False
    sources: tuple[str, ...] = ()
    duplicates: DuplicatesConfig = DuplicatesConfig(find="none")
    excluded: int = 0
    expect: ExpectConfig = ExpectConfig()
    ignore: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    file_per_image: bool = False
    box_readings: Mapping[str, BoxReading] = {}
    classifies: bool = False
    has_images: bool = True


def metadata_paths(dataset: DatasetSettings) -> list[str]:
    """Lists the paths, below the dataset's folder, that `metadata_files` may return."""
    return [
        FEATURES,
        LABEL_MAP,
        LABELS,
        STATISTICS,
        CARD,
        CROISSANT,
        MANIFEST,
        DATASET_INFO,
        *map(corrections_path, dataset.splits),
        *(_class_names_path(spec) for spec in dataset.features if spec.role is FeatureRole.LABEL),
    ]


def metadata_files(
    *,
    dataset: DatasetSettings,
    splits: Mapping[str, SplitOutcome],
    shards: Sequence[ShardResult],
    moved: Sequence[DatasetFile],
    label_map: LabelMap,
    skeletons: Skeletons,
    statistics: Mapping[str, Statistics],
    card: Mapping[str, bytes],
    duplicates: DuplicateCounts | None = None,
    corrections: Mapping[str, bytes] | None = None,
) -> dict[str, bytes]:
    """Renders all files that are not moved, except the run's record: `{path: content}`.

    Args:
        dataset: What the config says about the dataset.
        splits: The counts of each split.
        shards: All shards.
        moved: The files that are moved into place.
        label_map: The labels.
        skeletons: Lines between the keypoints of classes.
        statistics: `{split: what is in it}`.
        card: The data card's files, `{path: content}` (`card_files`).
        duplicates: The numbers of duplicates, if they were looked for.
        corrections: The files of corrections, `{path: content}`.
    """
    shards = sorted(shards, key=lambda shard: shard.shard_index)
    by_split = {
        split: [shard for shard in shards if shard.split == split] for split in dataset.splits
    }
    files = {
        FEATURES: features_json(dataset.features, label_map=label_map),
        DATASET_INFO: dataset_info_json(dataset, shards=by_split),
        STATISTICS: encode_statistics(statistics),
        **(corrections or {}),
    }
    if names := _class_label_names(label_map):
        for spec in dataset.features:
            if spec.role is FeatureRole.LABEL:
                files[_class_names_path(spec)] = _lines(names)
    if label_map.ids:
        files[LABEL_MAP] = label_map_pbtxt(label_map)
        files[LABELS] = labels_txt(label_map)
    files |= card
    shard_paths = {shard.data.path for shard in shards}
    others = [
        *(file for file in moved if file.path not in shard_paths),
        *(describe_data(path, data) for path, data in files.items()),
    ]
    manifest = {
        name: getattr(dataset, name)
        for name in ("shardbeam", "name", "version", "seed", "config", "codecs", "features")
    } | {
        "inputs": {
            "images": sum(shard.inputs for shard in shards),
            "fingerprint": add_fingerprints(*(shard.fingerprint for shard in shards)),
        },
        "labels": label_map.ids,
        "splits": {
            split: {
                "outcome": outcome,
                "shards": [
                    ShardEntry(**msgspec.structs.asdict(shard.data))
                    for shard in by_split.get(split, [])
                ],
            }
            for split, outcome in splits.items()
        },
        "files": sorted(others, key=lambda file: file.path),
        **({"skeletons": skeletons} if skeletons else {}),
        **({} if duplicates is None else {"duplicates": duplicates}),
        **({"numbered_maps": True} if _has_numbered_maps(dataset, label_map) else {}),
    }
    files[MANIFEST] = encode_manifest(manifest)
    return files


def _has_numbered_maps(dataset: DatasetSettings, label_map: LabelMap) -> bool:
    """Returns whether images have maps of plain numbers, although there are classes."""
    renamed = dataset.config.get("features", {}).get("rename", {})
    has_maps = any(spec.key == renamed.get(CLASS_MAP, CLASS_MAP) for spec in dataset.features)
    return has_maps and bool(label_map.ids) and not label_map.map_names()


def dataset_info_json(
    dataset: DatasetSettings, *, shards: Mapping[str, Sequence[ShardResult]]
) -> bytes:
    """Renders `dataset_info.json`.

    Args:
        dataset: What the config says about the dataset.
        shards: `{split: its shards, in order}`.
    """
    file_format = find_container(dataset.container).tfds_name
    template = dataset.naming.tfds_template
    if template == f"{dataset.name}-{{SPLIT}}.{file_format}-{_TFDS_NUMBER}":
        # TFDS names shards like this by default.
        template = ""
    return _json(
        {
            "name": dataset.name,
            "version": dataset.version,
            "description": dataset.description,
            "fileFormat": file_format,
            **_supervised_keys(dataset.features),
            "splits": [
                {
                    "name": split,
                    "shardLengths": [str(shard.examples) for shard in shards[split]],
                    "numBytes": str(sum(shard.data.size_bytes for shard in shards[split])),
                    **({"filepathTemplate": template} if template else {}),
                }
                for split in dataset.splits
            ],
        }
    )


def features_json(features: Sequence[FeatureSpec], *, label_map: LabelMap) -> bytes:
    """Renders `features.json`.

    Args:
        features: The features of every Example.
        label_map: The dataset's labels. They are `ClassLabel`s, whose names are in separate files;
            they are integers if an id is above `MAX_NUMBERED`, or if TFDS cannot read the names.
    """
    num_classes = len(_class_label_names(label_map)) or None
    nodes = {spec.key: _feature(spec, num_classes=num_classes) for spec in features}
    return _json(_node("features_dict.FeaturesDict", featuresDict={"features": nodes}))


def _class_names_path(spec: FeatureSpec) -> str:
    """Returns the path of a `ClassLabel`'s file of names, below the dataset's folder."""
    return f"{spec.key.replace('/', '.')}.labels.txt"


def _class_label_names(label_map: LabelMap) -> list[str]:
    """Returns the names of a `ClassLabel`; none if TFDS reads other names back from their file."""
    names = label_map.numbered_names()
    return names if all(name == label_line(name).strip() for name in names) else []


def _supervised_keys(features: Sequence[FeatureSpec]) -> dict[str, Any]:
    """Returns what `as_supervised` gives: the image and its label, if there is one of each."""
    image = [spec.key for spec in features if spec.role is FeatureRole.IMAGE and not spec.repeated]
    label = [spec.key for spec in features if spec.role is FeatureRole.LABEL and not spec.repeated]
    if len(image) != 1 or len(label) != 1:
        return {}
    return {"supervisedKeys": {"tuple": {"items": [{"featureKey": key} for key in image + label]}}}


def _feature(spec: FeatureSpec, *, num_classes: int | None) -> dict[str, Any]:
    if spec.role is FeatureRole.IMAGE:
        # Without an encoding, TFDS recognizes JPEG and PNG by their bytes, and decodes gray images
        # to 3 channels.
        node = _node("image_feature.Image", image={"dtype": "uint8", "shape": _shape(-1, -1, 3)})
    elif spec.role is FeatureRole.MASK:
        node = _node("image_feature.Image", image={"dtype": "uint8", "shape": _shape(-1, -1, 1)})
    elif spec.role is FeatureRole.MASK_16:
        # TFDS reads 16 bits from PNGs only.
        image = {"dtype": "uint16", "shape": _shape(-1, -1, 1), "encodingFormat": "png"}
        node = _node("image_feature.Image", image=image)
    elif spec.role in (FeatureRole.TEXT, FeatureRole.DATA, FeatureRole.LABEL_TEXT):
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


def label_map_pbtxt(label_map: LabelMap) -> bytes:
    """Renders `label_map.pbtxt`, in id order.

    This is the text form of the TF Object Detection API's `StringIntLabelMap`
    (`object_detection/protos/string_int_label_map.proto`), in which 0 is the background and ids
    are 32-bit integers.
    """
    items = [
        f'item {{\n  name: "{name.translate(_PBTXT_ESCAPES)}"\n  id: {label_id}\n}}\n'
        for name, label_id in labels_by_id(label_map)
    ]
    return "\n".join(items).encode()


def labels_txt(label_map: LabelMap) -> bytes:
    """Renders `labels.txt`: one name per line, in id order, with control characters escaped."""
    return _lines([name for name, _ in labels_by_id(label_map)])


def _lines(names: Iterable[str]) -> bytes:
    return "".join(f"{label_line(name)}\n" for name in names).encode()


def label_line(name: str) -> str:
    r"""Writes a name in one line: a line feed as `\n`, and so on."""
    return name.translate(_LINE_ESCAPES)


def labels_by_id(label_map: LabelMap) -> list[tuple[str, int]]:
    """Returns the names and ids of the classes, by id."""
    return sorted(label_map.ids.items(), key=lambda label: label[1])
