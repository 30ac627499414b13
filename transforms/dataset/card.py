"""Renders the data card, `README.md`, and the dataset's description in Croissant, `croissant.json`.

The card's YAML header says how Hugging Face's `datasets` loads the folder; without it, that would
load the index as if it were the dataset (https://huggingface.co/docs/hub/datasets-manual-configuration).
Croissant: https://docs.mlcommons.org/croissant/docs/croissant-spec.html, version 1.0.

Texts of the config are escaped, and names of classes are written as code, so that none of them
becomes a link, HTML or another heading, or changes the direction of writing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from shardbeam.configs.yaml_text import dump_yaml
from shardbeam.transforms.containers.base import ExampleSchema, find_container
from shardbeam.transforms.core.labels import LabelMap
from shardbeam.transforms.core.text import escape
from shardbeam.transforms.dataset.collectors.statistics import Statistics
from shardbeam.transforms.dataset.file_names import CARD, CROISSANT
from shardbeam.transforms.dataset.metadata import DatasetSettings, label_line, labels_by_id
from shardbeam.transforms.dataset.outcome import add_counts
from shardbeam.transforms.dataset.shard_result import ShardResult
from shardbeam.transforms.examples.columns import ColumnType, feature_list

# Classes that the card lists.
_MAX_CLASSES = 200
_BYTES_PER_MB = 1_000_000
_URL = re.compile(r"https?://[!-~]+")
# The form of the Hub's names of licenses, such as `cc-by-4.0`.
_LICENSE = re.compile(r"[a-z0-9][a-z0-9.+-]*")
# What Markdown could read as formatting, HTML, a link, a table or a formula.
_SPECIAL = re.compile(r"[\\`*_\[\]<>|~&$@]|:(?=//)|(?<=www)\.|^[#+=-]", re.I | re.M)
_WORD = re.compile(r"\S+")
_ITEM = re.compile(r"^(\d+)([.)])", re.M)
# The terms of Croissant, as its specification gives them: most are Croissant's own.
_TERMS = (
    *("citeAs", "column", "equivalentProperty", "extract", "field", "fileObject", "fileProperty"),
    *("fileSet", "format", "includes", "isLiveDataset", "jsonPath", "key", "md5", "parentField"),
    *("path", "recordSet", "references", "regex", "repeated", "replace", "samplingRate"),
    *("separator", "source", "subField", "transform"),
)
_CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "rai": "http://mlcommons.org/croissant/RAI/",
    "sc": "https://schema.org/",
    **{term: f"cr:{term}" for term in _TERMS},
}


def card_files(
    dataset: DatasetSettings,
    *,
    shards: Sequence[ShardResult],
    label_map: LabelMap,
    statistics: Mapping[str, Statistics],
) -> dict[str, bytes]:
    """Renders `README.md` and `croissant.json`: `{path: content}`.

    Args:
        dataset: What the config says about the dataset.
        shards: All shards.
        label_map: The labels.
        statistics: `{split: what is in it}`.
    """
    counted = {split: statistics.get(split, Statistics()) for split in dataset.splits}
    formats = {name for each in counted.values() for name in each.formats}
    schema = ExampleSchema(features=dataset.features, label_map=label_map)
    columns = find_container(dataset.container).columns(schema, image_formats=sorted(formats))
    header = _header(dataset, columns=columns)
    body = "\n\n".join(
        _sections(dataset, shards=shards, classes=labels_by_id(label_map), counted=counted)
    )
    return {
        CARD: f"---\n{header}---\n\n{body}\n".encode(),
        CROISSANT: _croissant_json(dataset),
    }


def _header(dataset: DatasetSettings, *, columns: Mapping[str, ColumnType]) -> str:
    """Renders the YAML header: on how `datasets` loads the folder, or that it cannot."""
    header: dict[str, Any] = {"pretty_name": dataset.name}
    if _LICENSE.fullmatch(dataset.license):
        header["license"] = dataset.license
    elif dataset.license:
        header |= {"license": "other", "license_name": _one_line(dataset.license)}
    data_files: Any = [
        {"split": split, "path": dataset.naming.glob(split)} for split in dataset.splits
    ]
    if columns:
        header["dataset_info"] = {"features": feature_list(columns)}
    else:
        # These files are of a kind that `datasets` does not know, and so it says that. With no
        # pattern, it would load whatever else it finds.
        data_files = dataset.naming.glob("*")
    header["configs"] = [{"config_name": "default", "data_files": data_files}]
    # Lines are not folded, so that none can look like the header's end.
    return dump_yaml(header, width=float("inf"))


def _sections(
    dataset: DatasetSettings,
    *,
    shards: Sequence[ShardResult],
    classes: Sequence[tuple[str, int]],
    counted: Mapping[str, Statistics],
) -> Iterator[str]:
    yield f"# {escape_markdown(dataset.name)} {dataset.version}"
    lines = (_visible(line.strip()) for line in dataset.description.splitlines())
    if description := escape_markdown("\n".join(lines).strip()):
        yield description
    yield _table(
        ["split", "images", "examples", "objects", "shards", "MB"],
        [
            _split_row(split, found, shards=[shard for shard in shards if shard.split == split])
            for split, found in counted.items()
        ],
    )
    if classes:
        yield "## Classes"
        images = add_counts(*(each.images_by_class for each in counted.values()))
        objects = add_counts(*(each.objects_by_class for each in counted.values()))
        yield _table(
            ["id", "class", "images", "objects"],
            [
                [
                    str(number),
                    _code(label_line(name)),
                    f"{images.get(name, 0):,}",
                    f"{objects.get(name, 0):,}",
                ]
                for name, number in classes[:_MAX_CLASSES]
            ],
        )
        if len(classes) > _MAX_CLASSES:
            more = len(classes) - _MAX_CLASSES
            yield f"... and {more:,} more, which are in `label_map.pbtxt`."
    if dataset.license or dataset.source:
        yield "## License and source"
        facts = (("License", dataset.license), ("Source", dataset.source))
        yield "\n".join(f"- {what}: {_linked(text)}" for what, text in facts if text)
    yield "## How to read it"
    if recipe := find_container(dataset.container).recipe:
        code = recipe.replace("{split}", json.dumps(dataset.splits[0]))
        yield f"```python\n{code}\n```"
    yield (
        "`manifest.json` has the checksum of each file, and the settings of the build; `index/` "
        "has a row for each example; `statistics.json` has more counts. Shardbeam "
        f"{dataset.shardbeam} has built this dataset."
    )


def _split_row(name: str, found: Statistics, *, shards: Sequence[ShardResult]) -> list[str]:
    examples = sum(shard.examples for shard in shards)
    num_bytes = sum(shard.data.size_bytes for shard in shards)
    return [
        f"`{name}`",
        *(f"{count:,}" for count in (found.images, examples, found.objects, len(shards))),
        f"{num_bytes / _BYTES_PER_MB:,.1f}",
    ]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def escape_markdown(text: str) -> str:
    """Escapes a text so that Markdown shows it as it is, without links or HTML."""
    return _ITEM.sub(r"\1\\\2", _SPECIAL.sub(r"\\\g<0>", text))


def _code(text: str) -> str:
    """Writes one line as code, in a table."""
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    space = " " if text[:1] in ("`", " ") or text[-1:] in ("`", " ") else ""
    escaped = _visible(text).replace("|", r"\|")
    return f"{fence}{space}{escaped}{space}{fence}"


def _linked(text: str) -> str:
    """Writes a text of the config; it is a link if all of it is a URL."""
    text = _one_line(text)
    is_url = _URL.fullmatch(text) and not set("<>") & set(text)
    return f"<{text}>" if is_url else escape_markdown(text)


def _one_line(text: str) -> str:
    return _visible(" ".join(text.split()))


def _visible(line: str) -> str:
    """Escapes characters that change how a line looks, but no blanks."""
    return _WORD.sub(lambda word: escape(word[0]), line)


def _croissant_json(dataset: DatasetSettings) -> bytes:
    """Renders `croissant.json`, with a set of files for each split."""
    media_type = find_container(dataset.container).media_type
    document: dict[str, Any] = {
        "@context": dict(sorted(_CONTEXT.items())),
        "@type": "sc:Dataset",
        "name": dataset.name,
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "version": dataset.version,
        "description": dataset.description or f"The dataset {dataset.name}.",
        "distribution": [
            {
                "@type": "cr:FileSet",
                "@id": split,
                "name": split,
                "description": f"The shards of the split {split}.",
                "encodingFormat": media_type,
                "includes": dataset.naming.glob(split),
            }
            for split in dataset.splits
        ],
    }
    if dataset.license:
        document["license"] = dataset.license
    if _URL.fullmatch(dataset.source):
        document["url"] = dataset.source
    elif dataset.source:
        document["isBasedOn"] = dataset.source
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"
