"""The schema of a dataset config: what to build.

Where and how to run it is the command line's business. Unknown keys and wrong types are
refused by `shardbeam.configs.load`.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

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
FileName = Annotated[
    str,
    msgspec.Meta(
        pattern=r"\A[^/\0.][^/\0]*\Z", description="a file's name such as '{split}.tfrecords'"
    ),
]
CocoTask = Literal["detection", "keypoints", "captions", "classification", "panoptic", "semantic"]
Seed = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


def _named(description: str) -> msgspec.Meta:
    """Says what a key is, for the command's help."""
    return msgspec.Meta(extra={"help": description})


class Source(_Strict, frozen=True, kw_only=True):
    """Where images and annotations come from. Each format has a class of its own.

    A key that is a location, or a list of them, is made absolute, and kept out of the manifest;
    the command has a flag for each key but `format` and mappings, repeatable where it is a list.

    Attributes:
        format: Which dataset format it is in.
    """

    # Keys that name folders of images, archives, or patterns of archives.
    ROOTS: ClassVar[tuple[str, ...]] = ("images",)
    # Whether the format itself may tell the splits.
    TELLS_SPLITS: ClassVar[bool] = False
    # Whether its objects may have masks.
    HAS_MASKS: ClassVar[bool] = False
    # One line for `shardbeam formats`.
    SUMMARY: ClassVar[str] = ""

    format: str


class CocoSource(Source, frozen=True, kw_only=True):
    """COCO; `file_name` is relative to `images`.

    Attributes:
        images: Root folder of the images.
        annotations: The JSON files of this split: instances, keypoints, captions, stuff.
        panoptic: The JSON file of panoptic segments.
        panoptic_masks: The folder of its PNGs.
        semantic_masks: A folder of PNGs with a class id a pixel, named as the images.
        tasks: Which keys to fill; by default those that the files have.
    """

    ROOTS = ("images", "panoptic_masks", "semantic_masks")
    HAS_MASKS = True
    SUMMARY = "COCO JSON: boxes, masks, keypoints, captions, panoptic and stuff"

    images: Annotated[Location, _named("root folder of the images")]
    annotations: Annotated[list[Location], _named("COCO JSON file")] = []
    panoptic: Annotated[Location, _named("COCO JSON file of panoptic segments")] | None = None
    panoptic_masks: Annotated[Location, _named("folder of the panoptic PNGs")] | None = None
    semantic_masks: Annotated[Location, _named("folder of PNGs with a class id a pixel")] | None = (
        None
    )
    tasks: (
        Annotated[list[CocoTask], msgspec.Meta(min_length=1), _named("which keys to fill")] | None
    ) = None


class LvisSource(Source, frozen=True, kw_only=True):
    """LVIS; an image's name is `file_name`, or the end of `coco_url`.

    Attributes:
        images: Root folder of the images.
        annotations: The JSON files of this split.
    """

    HAS_MASKS = True
    SUMMARY = "LVIS JSON: boxes and masks, and which categories were not looked for"

    images: Annotated[Location, _named("root folder of the images")]
    annotations: Annotated[list[Location], msgspec.Meta(min_length=1), _named("LVIS JSON file")]


class VocSource(Source, frozen=True, kw_only=True):
    """Pascal VOC: `JPEGImages`, `Annotations`, `ImageSets`, `Segmentation*` below one folder.

    Attributes:
        root: The folder that holds them (such as `VOCdevkit/VOC2012`).
        splits: Which lists are splits; by default train, val and test, as far as they are there.
        image_set: Which folder of `ImageSets` holds the lists.
        coordinates: Whether boxes give their first and last pixels, counted from 1, as VOC does;
            or are taken as they are, as edges counted from 0.
        semantic: Whether the maps of `SegmentationClass` are written.
    """

    ROOTS = ("root",)
    TELLS_SPLITS = True
    HAS_MASKS = True
    SUMMARY = "Pascal VOC XML: boxes, and segmentation PNGs"

    root: Annotated[Location, _named("folder of JPEGImages, Annotations and ImageSets")]
    splits: Annotated[list[Name], _named("split that the source tells")] | None = None
    image_set: Annotated[Name, _named("folder of ImageSets that holds the lists")] = "Main"
    coordinates: Annotated[
        Literal["one_based", "as_given"], _named("what the boxes' numbers mean")
    ] = "one_based"
    semantic: Annotated[bool, _named("write the maps of SegmentationClass")] = False


class YoloSource(Source, frozen=True, kw_only=True):
    """YOLO: `images/` and `labels/`, with `data.yaml` or `classes.txt`.

    Attributes:
        root: The folder that holds them; by default that of `data`.
        data: The `data.yaml`; by default the one in `root`, if there is one.
        splits: Which of the splits that it tells are written; by default all.
    """

    ROOTS = ("root",)
    TELLS_SPLITS = True
    HAS_MASKS = True
    SUMMARY = "YOLO text files: boxes and segments"

    root: Annotated[Location, _named("folder of images/ and labels/")] | None = None
    data: Annotated[Location, _named("data.yaml; by default the one in the root")] | None = None
    splits: Annotated[list[Name], _named("split that the source tells")] | None = None


class OpenImagesSource(Source, frozen=True, kw_only=True):
    """Open Images: CSV files of boxes and of labels, joined by image id.

    Attributes:
        images: Root folder of the images, named by their ids.
        boxes: The CSV files of boxes.
        classes: The CSV file of class descriptions; without it, classes are named by their
            machine ids (`/m/…`).
        image_labels: The CSV files of image-level labels.
    """

    SUMMARY = "Open Images CSV: boxes and image-level labels"

    images: Annotated[Location, _named("root folder of the images")]
    boxes: Annotated[list[Location], _named("CSV file of boxes")] = []
    classes: Annotated[Location, _named("file of class names")] | None = None
    image_labels: Annotated[list[Location], _named("CSV file of image-level labels")] = []


class TableSource(Source, frozen=True, kw_only=True):
    """A table with a row an image, or without images.

    Attributes:
        manifest: The files.
        image_root: Folders that hold all images that rows name; none for a table without images.
        image_column: The column of the image's path or URI; by default found by its name.
        label_column: The column of its labels; by default found by its name.
        label_separator: What separates several labels in one text, such as `|`; by default a
            text is one label, or a JSON list of them.
        split_column: The column of its split; by default found by its name.
        columns: `{column: type}` of further columns: `bool`, `int`, `float`, `string`, one of
            these with `?` where it may be missing, a list of one of them (`list[int]`), or
            `ignore`; by default as the values suggest.
        splits: The splits that rows may name, in order; by default those that they do.
    """

    ROOTS = ("image_root",)
    TELLS_SPLITS = True

    manifest: Annotated[list[Location], msgspec.Meta(min_length=1), _named("file of rows")]
    image_root: Annotated[list[Location], _named("folder of the images that rows name")] = []
    image_column: Annotated[str, _named("column of the image's path or URI")] | None = None
    label_column: Annotated[str, _named("column of the labels")] | None = None
    label_separator: Annotated[str, _named("what separates several labels, such as |")] | None = (
        None
    )
    split_column: Annotated[str, _named("column of the split")] | None = None
    columns: dict[str, str] = {}
    splits: list[Name] | None = None


class CsvSource(TableSource, frozen=True, kw_only=True):
    """A CSV file with a header."""

    SUMMARY = "CSV: a row an image, TFRecorder's too, or rows without images"


class JsonLinesSource(TableSource, frozen=True, kw_only=True):
    """JSON Lines: an object a line."""

    SUMMARY = "JSON Lines: an object an image, Vertex AI's too, or rows without images"


class FilenameLabelSource(Source, frozen=True, kw_only=True):
    """The label in the file's name.

    Attributes:
        images: Root folder of the images.
        pattern: A regular expression, searched in the path below `images`; its group `label`
            is the class, any other named group a feature of that name. By default what stands
            after the last `_`.
    """

    SUMMARY = "the label in the file's name, found by a regular expression"

    images: Annotated[Location, _named("root folder of the images")]
    pattern: Annotated[str, _named("regular expression with a group `label`")] | None = None


class ImageFolderSource(Source, frozen=True, kw_only=True):
    """A folder per class: `images/<class>/.../<image>`.

    Attributes:
        images: Root folder of the images.
        classes: A text file with a class name a line, which gives the classes' order and leaves
            all other folders out; without it, the folders sorted by name.
    """

    SUMMARY = "a folder per class"

    images: Annotated[Location, _named("root folder of the images")]
    classes: Annotated[Location, _named("file of class names")] | None = None


class Cifar10Source(Source, frozen=True, kw_only=True):
    """CIFAR-10, binary version.

    Attributes:
        root: The folder (or archive) of `data_batch_*.bin`, `test_batch.bin` and
            `batches.meta.txt`.
        pixels: Whether an image is stored as a PNG, or as its 3,072 values.
    """

    ROOTS = ("root",)
    TELLS_SPLITS = True
    SUMMARY = "CIFAR-10 binary batches"

    root: Annotated[Location, _named("folder of the binary batches")]
    pixels: Literal["png", "raw"] = "png"


class Cifar100Source(Cifar10Source, frozen=True, kw_only=True):
    """CIFAR-100, binary version: `train.bin`, `test.bin` and the files of class names.

    Attributes:
        coarse: Whether the 20 superclasses are the labels; otherwise the 100 classes are. The
            others become a feature.
    """

    SUMMARY = "CIFAR-100 binary files"

    coarse: Annotated[bool, _named("label images with the 20 superclasses")] = False


class WebDatasetSource(Source, frozen=True, kw_only=True):
    """WebDataset: tar files in which a sample's files stand together.

    Attributes:
        tars: The tar files, folders or patterns of them.
        fields: `{field: type}` of what else is written of the samples' JSON: `int`, `float`,
            `bool` or `string`.
    """

    ROOTS = ("tars",)
    SUMMARY = "WebDataset tar files"

    tars: Annotated[
        list[Location], msgspec.Meta(min_length=1), _named("tar file, or pattern of them")
    ]
    fields: dict[str, str] = {}


class CustomSource(Source, frozen=True, kw_only=True):
    """A format of the user's own: `format` is `package.module:Class` or `path/to/file.py:Class`.

    Attributes:
        images: Root folder of the images.
        annotations: Annotation files, handed to the class.
        options: Anything else that the class takes.
    """

    TELLS_SPLITS = True

    images: Location
    annotations: list[Location] = []
    options: dict[str, Any] = {}


# The formats that a config names by a word; any other name must be a `CustomSource`.
SOURCES: dict[str, type[Source]] = {
    "coco": CocoSource,
    "lvis": LvisSource,
    "voc": VocSource,
    "yolo": YoloSource,
    "open-images": OpenImagesSource,
    "csv": CsvSource,
    "jsonl": JsonLinesSource,
    "filename-label": FilenameLabelSource,
    "image-folder": ImageFolderSource,
    "cifar10": Cifar10Source,
    "cifar100": Cifar100Source,
    "webdataset": WebDatasetSource,
}


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


class PanopticConfig(_Strict, frozen=True, kw_only=True):
    """How panoptic maps are written.

    Attributes:
        stuff: Whether `image/panoptic/instance_mask` is `zero` where stuff is, as the Model Garden
            writes it, or holds the segment's `index`, so that no segment is lost.
        bits: Bits of a pixel of `image/panoptic/*`: 8, which most readers expect, or 16, for more
            than 255 segments in an image, or class ids beyond 255.
    """

    stuff: Literal["zero", "index"] = "zero"
    bits: Literal[8, 16] = 8


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
        add: Default keys that are written only where they are named here or in `rename`.
        rename: `{default key: written key}`.
        drop: Default keys that are not written.
        constants: Keys with the same value in every example: a string, an integer, a float, or
            a list of one of these.
    """

    add: list[str] = []
    rename: dict[str, str] = {}
    drop: list[str] = []
    constants: dict[str, Any] = {}


class OutputConfig(_Strict, frozen=True, kw_only=True):
    """Where the dataset goes, and in what pieces.

    Attributes:
        path: The dataset's folder, in which `{version}`, `{date}` and `{fingerprint}` stand for
            the config's version, the UTC date of the run's start (`YYYYMMDD`) and 12 hex digits of
            a digest of config and inputs; `{{` and `}}` for braces.
        latest: A pointer file: after each commit one line, the folder of what was committed.
        shard_size_mb: Target size of a shard in MB (10⁶ bytes).
        num_shards: Shards of each split (`{train: 16}`), or of every split (`16`); by size
            where absent.
        file_name: Name of a split's only file, such as `{split}.tfrecords`, for readers that
            want exactly that; numbered shards where absent.
    """

    path: Location
    latest: Location | None = None
    shard_size_mb: Annotated[float, msgspec.Meta(ge=1e-6, le=1e6)] = 150
    num_shards: PositiveInt | dict[str, PositiveInt] | None = None
    file_name: FileName | None = None


class RejectsConfig(_Strict, frozen=True, kw_only=True):
    """How many rejects are too many.

    Attributes:
        max_ratio: The greatest share of a split's inputs that may be rejected.
    """

    max_ratio: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.01


class Config(_Strict, frozen=True, kw_only=True):
    r"""A dataset: its sources, and what is written from them.

    Either `splits` names a source for each split, or there is one `source` for all, whose
    images `fractions` distributes; without `fractions` its format tells the splits, and where it
    tells none, all are in the split `train`.

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
        masks: Whether objects' masks are written, as one PNG an object.
        example_per: Whether an image makes one Example, or one for each of its objects.
        image: Checks and conversion of images.
        panoptic: Panoptic maps.
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
    masks: Literal["png", "none"] = "none"
    example_per: Literal["image", "annotation"] = "image"
    image: ImageConfig = ImageConfig()
    panoptic: PanopticConfig = PanopticConfig()
    labels: LabelsConfig = LabelsConfig()
    features: FeaturesConfig = FeaturesConfig()
    output: OutputConfig
    rejects: RejectsConfig = RejectsConfig()
