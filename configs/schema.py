"""The schema of a dataset config: what to build.

Where and how to run it is the command line's business. Unknown keys and wrong types are
refused by `configs.load`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

PositiveInt = Annotated[int, msgspec.Meta(ge=1)]
Fraction = Annotated[float, msgspec.Meta(gt=0, le=1)]
# What errors say is expected, where a pattern would tell people little, is the description.
Name = Annotated[
    str,
    msgspec.Meta(
        pattern=r"\A[a-zA-Z][a-zA-Z0-9_]*\Z",
        description="a name (a letter, then letters, digits and _)",
    ),
]
Version = Annotated[
    str,
    msgspec.Meta(
        pattern=r"\A(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\Z",
        description="major.minor.patch such as 1.0.0",
    ),
]
Colour = Annotated[
    str, msgspec.Meta(pattern=r"\A#[0-9a-fA-F]{6}\Z", description="a colour such as '#ffffff'")
]
Location = Annotated[str, msgspec.Meta(min_length=1, description="a path or URI")]
Seed = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class Source(_Strict, frozen=True, kw_only=True):
    """Where a split's images and annotations come from.

    Attributes:
        format: Which dataset format it is in.
        images: Root folder of the images.
    """

    format: str
    images: Location


class CocoSource(Source, frozen=True, kw_only=True):
    """COCO instances; `file_name` is relative to `images`.

    Attributes:
        annotations: The JSON files of this split.
    """

    annotations: Annotated[list[Location], msgspec.Meta(min_length=1)]


class ImageFolderSource(Source, frozen=True, kw_only=True):
    """A folder per class: `images/<class>/.../<image>`.

    Attributes:
        classes: A text file with a class name a line, which gives the classes' order and leaves
            all other folders out; without it, the folders sorted by name.
    """

    classes: Location | None = None


class CustomSource(Source, frozen=True, kw_only=True):
    """A format of the user's own: `format` is `package.module:Class` or `path/to/file.py:Class`.

    Attributes:
        annotations: Annotation files, handed to the class.
        options: Anything else that the class takes.
    """

    annotations: list[Location] = []
    options: dict[str, Any] = {}


# The formats that a config names by a word; any other name must be a `CustomSource`.
SOURCES: dict[str, type[Source]] = {"coco": CocoSource, "image-folder": ImageFolderSource}


class ImageConfig(_Strict, frozen=True, kw_only=True):
    """How images are checked and stored.

    Attributes:
        verify: `decode` decodes every image in full, `header` reads its header, `none` only
            what is needed to describe it.
        damaged: Whether a JPEG whose data is damaged is rejected, or kept and counted.
        wrong_extension: Whether an image whose name says another format is rejected, or kept
            and counted.
        encoding: What images are re-encoded as where their own bytes cannot be stored.
        quality: JPEG quality of re-encoded images, 1 to 100.
        max_side: Images with a longer side than this (pixels) are resized to it.
        orientation: Whether an EXIF orientation is applied to the pixels, or the bytes are
            kept as they are.
        annotated_as: Whether boxes refer to the `upright` image or to the pixels as `stored`;
            `auto` tells it from the annotated size, and takes `upright` where that cannot tell.
        background: Colour (`#rrggbb`) behind transparent pixels.
        max_pixels: Images with more pixels are rejected as decompression bombs.
    """

    verify: Literal["decode", "header", "none"] = "decode"
    damaged: Literal["reject", "keep"] = "reject"
    wrong_extension: Literal["reject", "keep"] = "reject"
    encoding: Literal["jpeg", "png"] = "jpeg"
    quality: Annotated[int, msgspec.Meta(ge=1, le=100)] = 95
    max_side: PositiveInt | None = None
    orientation: Literal["apply", "keep"] = "apply"
    annotated_as: Literal["auto", "upright", "stored"] = "auto"
    background: Colour = "#ffffff"
    max_pixels: PositiveInt = 178_956_970


class LabelsConfig(_Strict, frozen=True, kw_only=True):
    """Which classes are written, under which names and ids.

    Attributes:
        include: Only these names; all where None.
        exclude: Not these names.
        merge: `{new name: [old names]}`, applied before `include` and `exclude`.
        ids: `source` keeps the source's ids; `contiguous` numbers the names.
        first_id: The smallest contiguous id; by default 1 where objects are labelled (0 is
            the background), and 0 where images are.
    """

    include: list[str] | None = None
    exclude: list[str] = []
    merge: dict[str, list[str]] = {}
    ids: Literal["source", "contiguous"] = "source"
    first_id: Annotated[int, msgspec.Meta(ge=0)] | None = None


class FeaturesConfig(_Strict, frozen=True, kw_only=True):
    """Which Example keys are written.

    Attributes:
        rename: `{default key: written key}`.
        drop: Default keys that are not written.
        constants: Keys with the same value in every example: a string, an integer, a float, or
            a list of one of these.
    """

    rename: dict[str, str] = {}
    drop: list[str] = []
    constants: dict[str, Any] = {}


class OutputConfig(_Strict, frozen=True, kw_only=True):
    """Where the dataset goes, and in what pieces.

    Attributes:
        path: The dataset's folder.
        shard_size_mb: Target size of a shard in MB (10⁶ bytes).
        num_shards: Shards of each split (`{train: 16}`), or of every split (`16`); by size
            where absent.
    """

    path: Location
    shard_size_mb: Annotated[float, msgspec.Meta(ge=1e-6, le=1e6)] = 150
    num_shards: PositiveInt | dict[str, PositiveInt] | None = None


class RejectsConfig(_Strict, frozen=True, kw_only=True):
    """How many rejects are too many.

    Attributes:
        max_ratio: The greatest share of a split's inputs that may be rejected.
    """

    max_ratio: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.01


class Config(_Strict, frozen=True, kw_only=True):
    r"""A dataset: its sources, and what is written from them.

    Either `splits` names a source for each split, or `source` and `fractions` make the splits
    from one source.

    Attributes:
        name: The dataset's name (TFDS wants `[a-zA-Z]\w*`).
        version: `major.minor.patch`.
        description: A text for people, kept in `dataset_info.json`.
        seed: Key of the hash that decides split, shard and order.
        splits: `{split: source}`.
        source: One source for all splits.
        fractions: `{split: fraction}`, adding up to 1.
        group_by: A regular expression on the key; images whose first group (or whole match)
            is the same fall into the same split.
        unannotated: Whether images that no annotation file names are kept, or left out.
        image: Checks and conversion of images.
        labels: Classes.
        features: Example keys.
        output: The dataset's folder and shards.
        rejects: Tolerance.
    """

    name: Name
    version: Version = "1.0.0"
    description: str = ""
    seed: Seed = 0
    splits: dict[Name, Source] = {}
    source: Source | None = None
    fractions: dict[Name, Fraction] = {}
    group_by: str | None = None
    unannotated: Literal["keep", "drop"] = "keep"
    image: ImageConfig = ImageConfig()
    labels: LabelsConfig = LabelsConfig()
    features: FeaturesConfig = FeaturesConfig()
    output: OutputConfig
    rejects: RejectsConfig = RejectsConfig()
