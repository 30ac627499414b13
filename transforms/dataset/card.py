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
from shardbeam.transforms.core.text import escape
from shardbeam.transforms.examples.features import ColumnType, feature_list

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


class CardSplit(msgspec.Struct, frozen=True, kw_only=True):
    """What the card says about a split.

    Attributes:
        name: Its name.
        files: A pattern for the names of its shards.
        shards: How many there are.
        num_bytes: Bytes of all of them.
        examples: Examples in them.
        images: Examples with an image.
        objects: Objects of all images.
    """

    name: str
    files: str
    shards: int
    num_bytes: int
    examples: int
    images: int
    objects: int


class CardClass(msgspec.Struct, frozen=True, kw_only=True):
    """What the card says about a class.

    Attributes:
        number: Its id.
        name: Its name, in one line.
        images: Images with it, of all splits.
        objects: Objects of it, of all splits.
    """

    number: int
    name: str
    images: int
    objects: int


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """What the data card says.

    Attributes:
        name: The dataset's name.
        version: Its version.
        description: A text for readers; empty if there is none, like the next two.
        license: The name of a license, or its URL.
        source: Where the data comes from.
        splits: Its splits.
        classes: Its classes, by id.
        files: A pattern for the names of all shards.
        media_type: The shards' media type.
        columns: The columns as which `datasets` loads the shards; empty if it cannot.
        recipe: Python code that reads the split `{split}` of this folder; empty if there is none.
        shardbeam: Version of Shardbeam.
    """

    name: str
    version: str
    description: str
    license: str
    source: str
    splits: Sequence[CardSplit]
    classes: Sequence[CardClass]
    files: str
    media_type: str
    columns: Mapping[str, ColumnType]
    recipe: str
    shardbeam: str


def data_card(card: Card) -> bytes:
    """Renders `README.md`."""
    body = "\n\n".join(_sections(card))
    return f"---\n{_header(card)}---\n\n{body}\n".encode()


def _header(card: Card) -> str:
    """Renders the YAML header: on how `datasets` loads the folder, or that it cannot."""
    header: dict[str, Any] = {"pretty_name": card.name}
    if _LICENSE.fullmatch(card.license):
        header["license"] = card.license
    elif card.license:
        header |= {"license": "other", "license_name": _one_line(card.license)}
    data_files: Any = [{"split": split.name, "path": split.files} for split in card.splits]
    if card.columns:
        header["dataset_info"] = {"features": feature_list(card.columns)}
    else:
        # These files are of a kind that `datasets` does not know, and so it says that. With no
        # pattern, it would load whatever else it finds.
        data_files = card.files
    header["configs"] = [{"config_name": "default", "data_files": data_files}]
    # Lines are not folded, so that none can look like the header's end.
    return dump_yaml(header, width=float("inf"))


def _sections(card: Card) -> Iterator[str]:
    yield f"# {escape_markdown(card.name)} {card.version}"
    lines = (_visible(line.strip()) for line in card.description.splitlines())
    if description := escape_markdown("\n".join(lines).strip()):
        yield description
    yield _table(
        ["split", "images", "examples", "objects", "shards", "MB"],
        [
            [
                f"`{split.name}`",
                *(f"{n:,}" for n in (split.images, split.examples, split.objects, split.shards)),
                f"{split.num_bytes / _BYTES_PER_MB:,.1f}",
            ]
            for split in card.splits
        ],
    )
    if card.classes:
        yield "## Classes"
        yield _table(
            ["id", "class", "images", "objects"],
            [
                [str(each.number), _code(each.name), f"{each.images:,}", f"{each.objects:,}"]
                for each in card.classes[:_MAX_CLASSES]
            ],
        )
        if len(card.classes) > _MAX_CLASSES:
            more = len(card.classes) - _MAX_CLASSES
            yield f"... and {more:,} more, which are in `label_map.pbtxt`."
    if card.license or card.source:
        yield "## License and source"
        facts = (("License", card.license), ("Source", card.source))
        yield "\n".join(f"- {what}: {_linked(text)}" for what, text in facts if text)
    yield "## How to read it"
    if card.recipe:
        code = card.recipe.replace("{split}", json.dumps(card.splits[0].name))
        yield f"```python\n{code}\n```"
    yield (
        "`manifest.json` has the checksum of each file, and the settings of the build; `index/` "
        "has a row for each example; `statistics.json` has more counts. Shardbeam "
        f"{card.shardbeam} has built this dataset."
    )


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


def croissant_json(card: Card) -> bytes:
    """Renders `croissant.json`, with a set of files for each split."""
    document: dict[str, Any] = {
        "@context": dict(sorted(_CONTEXT.items())),
        "@type": "sc:Dataset",
        "name": card.name,
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "version": card.version,
        "description": card.description or f"The dataset {card.name}.",
        "distribution": [
            {
                "@type": "cr:FileSet",
                "@id": split.name,
                "name": split.name,
                "description": f"The shards of the split {split.name}.",
                "encodingFormat": card.media_type,
                "includes": split.files,
            }
            for split in card.splits
        ],
    }
    if card.license:
        document["license"] = card.license
    if _URL.fullmatch(card.source):
        document["url"] = card.source
    elif card.source:
        document["isBasedOn"] = card.source
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"
