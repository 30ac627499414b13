"""The schema of a dataset config: what to build.

The command line's flags say where and how to run it. `shardbeam.configs.load` refuses unknown
keys and wrong types. All keys are in this one module, in the order of docs/reference/config.md,
which is made from it.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import msgspec

from shardbeam.configs.keys import Location, keys_of, named
from shardbeam.configs.patterns import compile_pattern
from shardbeam.configs.placeholders import TemplateError, check_output_template, placeholders
from shardbeam.configs.problem import Path, Problem, did_you_mean

# The share of a split's inputs that may be rejected if the config does not say it.
DEFAULT_MAX_RATIO = 0.01
_FRACTIONS_TOLERANCE = 1e-6
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")

PositiveInt = Annotated[int, msgspec.Meta(ge=1)]
Fraction = Annotated[float, msgspec.Meta(gt=0, le=1)]
# Errors show the description instead of the pattern.
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
FileName = Annotated[
    str,
    msgspec.Meta(
        pattern=r"\A[^/\0.][^/\0]*\Z", description="a file's name such as '{split}.tfrecords'"
    ),
]
FormatName = Annotated[
    str, msgspec.Meta(description="the name of a format (`shardbeam formats` lists them)")
]
# The key `splits` of a format whose `CHOOSES_SPLITS` is set.
PredefinedSplits = Annotated[
    list[Name], msgspec.Meta(min_length=1), named("split to write (default: all of them)")
]
Seed = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class Source(_Strict, frozen=True, kw_only=True, dict=True):
    """Where images and annotations come from: the base of every format's class.

    The class of a format holds its keys (`transforms/formats`). A key that is a `Location`, or a
    list of them, is made absolute and kept out of the manifest. A field whose name begins with `_`
    is not a key: the plan sets it.

    Attributes:
        format: The format's name, or `package.module:Class`, or `path/to/file.py:Class`.
    """

    # Whether the key `splits` chooses among the splits that the source predefines.
    CHOOSES_SPLITS: ClassVar[bool] = False
    # At least one of these keys is needed; the usual one comes first.
    SOME_OF: ClassVar[tuple[str, ...]] = ()

    format: FormatName = ""

    def check_some(self) -> None:
        """Checks that one of `SOME_OF` is given.

        Raises:
            Problem: None of them is.
        """
        if not any(getattr(self, key) for key in self.SOME_OF):
            raise Problem(
                (self.SOME_OF[0],),
                f"missing; {self.format or type(self).__name__} needs {' or '.join(self.SOME_OF)}",
            )


# One source, or several that make one split; each keeps its own format.
Sources: TypeAlias = (
    Source | Annotated[list[Source], msgspec.Meta(description="a list of such mappings")]
)


class ResizeConfig(_Strict, frozen=True, kw_only=True):
    """One size for all images.

    Attributes:
        width: Width of each stored image in pixels.
        height: Its height.
        fit: How an image with another aspect ratio gets this size: `pad` adds borders, `crop` cuts
            off what is too long, on both sides alike, and `stretch` changes the aspect ratio.
    """

    width: Annotated[int, msgspec.Meta(ge=1, le=65_500)]
    height: Annotated[int, msgspec.Meta(ge=1, le=65_500)]
    fit: Literal["pad", "stretch", "crop"] = "pad"


class ImageConfig(_Strict, frozen=True, kw_only=True):
    """How images are checked and stored.

    Attributes:
        verify: How each image is checked: decoded in full, by its header, or only as far as is
            needed to describe it (`none`).
        damaged: What happens to a JPEG with damaged data.
        crop_hashes: Whether cropped copies are found, too, by hashes of five crops of each image.
        wrong_extension: What happens to an image whose name claims another format.
        encoding: The format of an image whose own bytes cannot be stored.
        quality: JPEG quality of such images.
        max_side: An image whose longer side has more pixels is resized to this.
        resize: One size for all images: `pad` adds borders in the colour `background`, `crop` cuts
            off what is too long, and `stretch` changes the aspect ratio. Boxes, masks and keypoints
            move with the pixels. Not together with `max_side`.
        orientation: Whether an EXIF orientation is applied to the pixels.
        annotated_as: Whether boxes refer to the `upright` image or to the pixels as `stored`.
            `auto` decides by the annotated size or its aspect ratio, and otherwise for `upright`.
        annotated_size: If the annotated size is not the image's, `scale` scales annotated pixels
            (of the same aspect ratio), `ignore` takes them as pixels of the image, and `reject`
            rejects the image.
        background: Colour behind transparent pixels, and of the borders that `resize` adds.
        max_pixels: An image with more pixels is rejected as a decompression bomb.
        max_decoded_mb: An image is rejected if decoding it takes more MB of memory, by its header.
        max_file_mb: A file of more MB is rejected without being read.
    """

    verify: Literal["decode", "header", "none"] = "decode"
    damaged: Literal["reject", "keep"] = "reject"
    crop_hashes: bool = False
    wrong_extension: Literal["reject", "keep"] = "keep"
    encoding: Literal["jpeg", "png"] = "jpeg"
    quality: Annotated[int, msgspec.Meta(ge=1, le=100)] = 95
    max_side: PositiveInt | None = None
    resize: (
        Annotated[
            ResizeConfig,
            msgspec.Meta(description="a mapping such as {width: 640, height: 640, fit: pad}"),
        ]
        | None
    ) = None
    orientation: Literal["apply", "keep"] = "apply"
    annotated_as: Literal["auto", "upright", "stored"] = "auto"
    annotated_size: Literal["scale", "ignore", "reject"] = "scale"
    background: Colour = "#ffffff"
    max_pixels: PositiveInt = 178_956_970
    max_decoded_mb: PositiveInt = 2048
    max_file_mb: PositiveInt = 512

    def __post_init__(self) -> None:
        if self.resize is not None and self.max_side is not None:
            raise Problem(("resize",), "not together with image.max_side; give one of them")
        if self.crop_hashes and self.verify != "decode":
            raise Problem(("crop_hashes",), "only with image.verify: decode, the default")


class PanopticConfig(_Strict, frozen=True, kw_only=True):
    """How panoptic maps are written.

    Attributes:
        stuff: What `image/panoptic/instance_mask` holds where stuff is: 0, as the TF Model Garden
            writes it, or the segment's `index`, so that no segment is lost.
        bits: Bits per pixel of `image/panoptic/*`; 16 allows more than 255 segments in an image,
            and class ids above 255.
    """

    stuff: Literal["zero", "index"] = "zero"
    bits: Literal[8, 16] = 8


_Least = Annotated[float, msgspec.Meta(ge=0)]


class LabelsConfig(_Strict, frozen=True, kw_only=True, dict=True):
    """Which classes are written, under which names and ids.

    Attributes:
        include: Names of the classes that are written; all classes if absent.
        exclude: Names of classes that are not written.
        merge: Classes that are written under one new name: `{new name: [old names]}`, before
            `include` and `exclude`.
        ids: `source` keeps the ids of the source (of objects raised by 1 if the smallest is 0,
            because readers reserve 0 for the background). `contiguous` numbers the classes instead.
        first_id: The smallest contiguous id; by default 1 for objects and 0 for images. With `ids:
            source`, 0 leaves the ids as they are, and makes a background a class.
        min_side_px: An object whose box is narrower or lower than this many pixels is not written.
            Boxes are measured within the image and before any resize.
        min_area_px: The same for objects whose box covers fewer square pixels.
    """

    include: list[str] | None = None
    exclude: list[str] = []
    merge: dict[str, list[str]] = {}
    ids: Literal["source", "contiguous"] = "source"
    first_id: Annotated[int, msgspec.Meta(ge=0)] | None = None
    min_side_px: _Least = 0
    min_area_px: _Least = 0

    def __post_init__(self) -> None:
        if self.include == []:
            raise Problem(("include",), "expected names, got an empty list")
        for new, olds in self.merge.items():
            for old in olds:
                if self.merged_names[old] != new:
                    raise Problem(
                        ("merge", new), f"{old!r} is merged into {self.merged_names[old]!r} already"
                    )
        # Both use the new names: a name that was merged would silently match nothing.
        for key, names in (("include", self.include or []), ("exclude", self.exclude)):
            for index, name in enumerate(names):
                if name in self.merged_names and name not in self.merge:
                    raise Problem(
                        (key, index),
                        f"{name!r} is merged into {self.merged_names[name]!r}; name that instead",
                    )

    @functools.cached_property
    def merged_names(self) -> Mapping[str, str]:
        """`{old name: new name}` of the merged names."""
        names: dict[str, str] = {}
        for new, olds in self.merge.items():
            for old in olds:
                names.setdefault(old, new)
        return names

    def written_name(self, name: str) -> str | None:
        """Returns the name that a class of the source is written under; None if it is left out."""
        name = self.merged_names.get(name, name)
        if self._included is not None and name not in self._included:
            return None
        return None if name in self._excluded else name

    @functools.cached_property
    def _included(self) -> frozenset[str] | None:
        return None if self.include is None else frozenset(self.include)

    @functools.cached_property
    def _excluded(self) -> frozenset[str]:
        return frozenset(self.exclude)


class FeaturesConfig(_Strict, frozen=True, kw_only=True):
    """Which Example keys are written.

    Attributes:
        add: Keys that are written only on request, such as `image/depth`.
        rename: `{default key: written key}`.
        drop: Default keys that are not written.
        constants: Keys with the same value in every Example: a string, an integer, a float, or a
            list of one of these.
    """

    add: list[str] = []
    rename: dict[str, str] = {}
    drop: list[str] = []
    constants: dict[str, Any] = {}


class OutputConfig(_Strict, frozen=True, kw_only=True):
    """Where the dataset goes, and in which pieces.

    Attributes:
        path: The dataset's folder. It may contain `{version}`, `{date}` and `{fingerprint}`.
        latest: A pointer file, whose one line names the folder that was committed last.
        shard_size_mb: Target size of a shard in MB of 10⁶ bytes.
        num_shards: Number of shards of every split, or of each (`{train: 16}`), instead of their
            size.
        file_name: Name of a split's only file, for readers that expect exactly that, instead of
            numbered shards.
        container: Kind of the shards' files: `tfrecord`, `array_record`, `webdataset` (tar files)
            or `hf_parquet` (Parquet files).
    """

    path: Location
    latest: Location | None = None
    shard_size_mb: Annotated[float, msgspec.Meta(ge=1e-6, le=1e6)] = 150
    num_shards: PositiveInt | dict[str, PositiveInt] | None = None
    file_name: FileName | None = None
    container: str = "tfrecord"

    def __post_init__(self) -> None:
        try:
            check_output_template(self.path)
        except TemplateError as error:
            raise Problem(("path",), str(error)) from error
        if self.file_name is not None and self.num_shards not in (None, 1):
            raise Problem(
                ("file_name",),
                "not together with output.num_shards, because each split becomes one file",
            )
        if self.latest is not None:
            self._check_latest(self.latest)

    def _check_latest(self, latest: str) -> None:
        try:
            names = sorted(placeholders(latest))
        except TemplateError as error:
            raise Problem(("latest",), str(error)) from error
        if names:
            raise Problem(
                ("latest",),
                f"expected no placeholder, got {{{names[0]}}}: readers need it at a fixed path",
            )
        for key, path in (("path", self.path), ("latest", latest)):
            if _CONTROL.search(path):
                raise Problem(
                    (key,), "contains a control character, but output.latest is a file of one line"
                )


class RejectsConfig(_Strict, frozen=True, kw_only=True):
    """How many rejects are too many.

    Attributes:
        max_ratio: The largest share of a split's inputs that may be rejected; with more, nothing is
            committed. By default 1 %, or a few damaged pictures of a small dataset.
    """

    max_ratio: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None


class DuplicatesConfig(_Strict, frozen=True, kw_only=True):
    """What happens if pictures occur several times in the dataset.

    Attributes:
        find: Which duplicates are looked for.
        near: Pictures count as nearly equal if at most this many of the 64 bits of their hashes
            differ. 0 finds only equal files, and so does any `image.verify` but `decode`.
        leaks: What happens if a picture is in several splits.
        contradictions: The same for equal files with different labels.
        near_contradictions: The same for nearly equal pictures with different image-level classes.
    """

    find: Literal["all", "none"] = "all"
    near: Annotated[int, msgspec.Meta(ge=0, le=3)] = 3
    leaks: Literal["warn", "refuse"] = "warn"
    contradictions: Literal["warn", "refuse"] = "warn"
    near_contradictions: Literal["warn", "refuse"] = "warn"


# The kinds of findings, in the order in which they are shown (docs/reference/statistics.md).
FindingKind = Literal[
    "duplicate_box",
    "same_box",
    "large_box",
    "tiny_box",
    "thin_box",
    "sparse_mask",
    "box_off_mask",
    "many_objects",
    "no_objects",
    "same_picture",
    "unequal_objects",
    "dark_picture",
    "bright_picture",
    "low_contrast",
    "unused_class",
    "similar_names",
    "rare_class",
    "uneven_classes",
    "missing_class",
    "empty_split",
    "correction",
]


class FindingsConfig(_Strict, frozen=True, kw_only=True):
    """What is worth a look in the dataset.

    Attributes:
        ignore: Kinds of findings that are neither shown nor refused, such as `[large_box]`.
    """

    ignore: list[FindingKind] = []


_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Range = Annotated[
    list[PositiveInt],
    msgspec.Meta(
        min_length=2, max_length=2, description="the smallest and the largest, such as [32, 4096]"
    ),
]


class CardConfig(_Strict, frozen=True, kw_only=True):
    """What the data card (`README.md`) and `croissant.json` say about where the data comes from.

    Attributes:
        license: The license of the data: its name on the Hugging Face Hub, such as `cc-by-4.0`, or
            its URL.
        source: Where the data comes from, such as a URL.
    """

    license: str = ""
    source: str = ""


class ExpectConfig(_Strict, frozen=True, kw_only=True):
    """What each split must contain; otherwise nothing is committed.

    Attributes:
        min_images: The smallest number of images in every split (`1000`), or by split (`{train:
            1000}`).
        min_objects: The same for objects.
        min_images_per_class: The same for the images of each class.
        min_objects_per_class: The same for the objects of each class.
        image_width: Widths of images in pixels.
        image_height: Their heights.
        max_unannotated: The largest share of images without any annotation.
        max_crowds: The largest share of objects that are crowds.
        max_corrections: The largest share of images, objects or labels that any one kind of
            correction may change.
        max_findings: The largest number of images in a split (or, for kinds about classes, of
            findings) of each kind, such as `{duplicate_box: 0}`.
    """

    min_images: PositiveInt | dict[str, PositiveInt] | None = None
    min_objects: PositiveInt | dict[str, PositiveInt] | None = None
    min_images_per_class: PositiveInt | dict[str, PositiveInt] | None = None
    min_objects_per_class: PositiveInt | dict[str, PositiveInt] | None = None
    image_width: _Range | None = None
    image_height: _Range | None = None
    max_unannotated: _Share | None = None
    max_crowds: _Share | None = None
    max_corrections: _Share | None = None
    max_findings: dict[FindingKind, Annotated[int, msgspec.Meta(ge=0)]] | None = None

    # A key whose mapping does not name splits.
    BY_KIND: ClassVar[str] = "max_findings"

    def __post_init__(self) -> None:
        for key in ("image_width", "image_height"):
            least, greatest = getattr(self, key) or (1, 1)
            if least > greatest:
                raise Problem(
                    (key,), f"expected the smaller number first, got [{least}, {greatest}]"
                )

    def of_split(self, split: str) -> Mapping[str, Any]:
        """Returns the keys that are set for a split, with their values."""
        found = {}
        for key in self.__struct_fields__:
            value = getattr(self, key)
            if isinstance(value, dict) and key != self.BY_KIND:
                value = value.get(split)
            if value is not None:
                found[key] = value
        return found


class Config(_Strict, frozen=True, kw_only=True):
    r"""A dataset: its sources, and what is written from them.

    Either `splits` names a source for each split, or there is one `source` for all, whose
    images `fractions` distributes. Either may be a list of sources.

    Attributes:
        name: The dataset's name, with which the names of its shards begin.
        version: The dataset's version.
        description: A text for people, in `dataset_info.json` and in the data card.
        card: What the data card says about where the data comes from.
        seed: Decides the split and the shard of each image, and the order inside a shard.
        splits: `{split: source}` or `{split: [source, source]}`. A program that gives the records
            itself lists only the names.
        source: Instead of `splits`: one source, or a list of them, for all splits.
        fractions: Approximate shares of the images of `source`, such as `{train: 0.8, validation:
            0.2}`, which add up to 1. Without them, the format decides which splits there are; if it
            knows none, all images are in `train`.
        exact: With `fractions`: exactly 80 and 20 of 100 images, counted before any is rejected.
            Groups stay whole. Only here may an added image move others to another split.
        stratify: Like `exact`, and also for each class (within an image or two). An image with
            several classes counts for the rarest. Not together with `group_by`.
        group_by: With `fractions`: a regular expression such as `^(video\d+)/`. Images whose keys
            have the same first group (or whole match) stay in one split. Or the
            `duplicates.parquet` of another build, whose groups stay together.
        exclude: A file that names images to leave out: one key per line, or the
            `duplicates.parquet` of another build, which keeps one image of each group.
        unannotated: Whether images that no annotation file names are written as negatives (`keep`),
            left out or rejected. `auto` leaves the choice to the format.
        objects_lost: The same for images that have objects, of which none can be written.
        objects: `none` allows that a dataset of objects ends up without any.
        masks: `png` writes a mask for each object.
        example_per: Whether an image makes one Example, or each of its objects does
            (`annotation`).
        source_id: What `image/source_id` and `annotation/image_id` hold: the id in the source (or
            the path), which is often unique only within one annotation file, or a `number`, a
            63-bit hash of the source's name and the image's path.
        image: How images are checked and converted.
        panoptic: How panoptic maps are written.
        labels: Which classes are written, under which names and ids.
        features: Which Example keys are written.
        output: Where the dataset goes, and in which pieces.
        rejects: How many rejects are too many.
        duplicates: What happens if pictures occur several times.
        findings: Which findings are worth a look.
        expect: What each split must contain.
        limit: Builds a sample of at most N images of each split, with some of every class, in the
            folder `output.path` followed by `-limit-N`.
    """

    name: Annotated[Name, named("the dataset's name (default: the format's)")]
    version: Annotated[
        Version, named("the dataset's version (default: 1.0.0)", metavar="X.Y.Z")
    ] = "1.0.0"
    description: str = ""
    card: CardConfig = CardConfig()
    seed: Seed = 0
    splits: dict[Name, Sources] | list[Name] = {}
    source: Sources | None = None
    fractions: Annotated[
        dict[Name, Fraction],
        named("make several splits, such as train=0.8,validation=0.2", metavar="NAME=FRACTION,..."),
    ] = {}
    exact: Annotated[
        bool, named("make the sizes of these splits exact (counted before any image is rejected)")
    ] = False
    stratify: Annotated[
        bool,
        named("keep the fractions within each class, too; an image counts for its rarest class"),
    ] = False
    group_by: Annotated[
        str | None,
        named(
            "put images into the same split if this matches the same text in their paths",
            metavar="REGEX",
        ),
    ] = None
    exclude: Annotated[
        Location | None, named("leave out the images that this file names", metavar="FILE")
    ] = None
    unannotated: Literal["auto", "keep", "drop", "reject"] = "auto"
    objects_lost: Literal["reject", "drop", "keep"] = "reject"
    objects: Literal["some", "none"] = "some"
    masks: Literal["png", "none"] = "none"
    example_per: Literal["image", "annotation"] = "image"
    source_id: Literal["source", "number"] = "source"
    image: ImageConfig = ImageConfig()
    panoptic: PanopticConfig = PanopticConfig()
    labels: LabelsConfig = LabelsConfig()
    features: FeaturesConfig = FeaturesConfig()
    output: OutputConfig
    rejects: RejectsConfig = RejectsConfig()
    duplicates: DuplicatesConfig = DuplicatesConfig()
    findings: FindingsConfig = FindingsConfig()
    expect: ExpectConfig = ExpectConfig()
    limit: Annotated[
        PositiveInt | None,
        named(
            "build a sample of at most N images of each split, some of every class, in its own "
            "folder (output.path followed by -limit-N)",
            metavar="N",
        ),
    ] = None

    def __post_init__(self) -> None:
        self._check_splits()
        self._check_group_by()
        self._check_output()

    def sources(self) -> Iterator[tuple[Path, Source]]:
        """Yields each source with its path in the config."""
        for path, sources in self._given().items():
            if isinstance(sources, Source):
                yield path, sources
            else:
                yield from (((*path, index), source) for index, source in enumerate(sources))

    def locations(self) -> Iterator[tuple[Path, str]]:
        """Yields each path or URI that the sources name, with its key's path in the config."""
        for path, source in self.sources():
            for key in keys_of(type(source)).values():
                value = getattr(source, key.name) if key.is_location else None
                for location in [value] if isinstance(value, str) else value or ():
                    yield (*path, key.name), location

    def _given(self) -> dict[Path, Sources]:
        given: dict[Path, Sources] = {
            ("splits", split): sources
            for split, sources in (self.splits.items() if isinstance(self.splits, dict) else ())
        }
        return given if self.source is None else {**given, ("source",): self.source}

    @property
    def group_file(self) -> str | None:
        """The file that `group_by` names; None if `group_by` is a regular expression."""
        is_file = self.group_by is not None and self.group_by.endswith(".parquet")
        return self.group_by if is_file else None

    def _check_splits(self) -> None:
        if self.splits and self.source is not None:
            raise Problem(("source",), "not together with splits; give one of them")
        if self.splits and self.fractions:
            raise Problem(("fractions",), "only with source; splits names the splits already")
        for path, sources in self._given().items():
            if sources == []:
                raise Problem(path, "expected a source or several, got an empty list")
        total = math.fsum(self.fractions.values())
        if self.fractions and abs(total - 1) > _FRACTIONS_TOLERANCE:
            raise Problem(("fractions",), f"expected a sum of 1, got {total}")
        key, named = ("splits", self.splits) if self.splits else ("fractions", self.fractions)
        if "all" in named:
            raise Problem(
                (key, "all"), "TFDS reads `all` as all splits together; choose another name"
            )
        for path, source in self.sources():
            chosen = getattr(source, "splits", None) if source.CHOOSES_SPLITS else None
            if chosen is not None and named:
                raise Problem(
                    (*path, "splits"),
                    f"the config names the splits already, with {key}; take this out",
                )
            if chosen is not None and len(set(chosen)) < len(chosen):
                raise Problem((*path, "splits"), "expected names, each once")

    def check_sources(self, *, records: bool) -> None:
        """Checks that there are sources, or none if a program gives the records itself.

        Raises:
            Problem: A source is missing, or is given beside records.
        """
        sources = self._given()
        if records and sources:
            path = next(iter(sources))
            raise Problem(path[:1], "not together with records, which a program gives; take it out")
        if not records and not sources:
            key = "a source for each split" if self.splits else "splits, or source"
            raise Problem(
                ("splits",),
                f"missing; expected {key}; only shardbeam.build(records=...) needs no source",
            )

    def _check_group_by(self) -> None:
        for key in ("exact", "stratify"):
            if getattr(self, key) and not self.fractions:
                raise Problem((key,), "only together with fractions")
        if self.stratify and self.group_by is not None:
            raise Problem(("stratify",), "not together with group_by, whose groups stay whole")
        if self.group_by is None:
            return
        if not self.fractions:
            raise Problem(("group_by",), "only together with fractions")
        if self.group_file is not None:
            return
        try:
            compile_pattern(self.group_by)
        except ValueError as error:
            raise Problem(("group_by",), f"expected a regular expression: {error}") from error

    def _check_output(self) -> None:
        # A source without fractions may predefine its splits itself.
        named = [*self.splits, *self.fractions]
        if named:
            self.check_split_names(named)
        self.check_file_name(named)

    def check_split_names(self, splits: Sequence[str]) -> None:
        """Checks that keys with a value for each split name only existing splits.

        Raises:
            Problem: A key names another split.
        """
        expected, by_kind = msgspec.structs.asdict(self.expect), ExpectConfig.BY_KIND
        for path, value in (
            (("output", "num_shards"), self.output.num_shards),
            *((("expect", key), value) for key, value in expected.items() if key != by_kind),
        ):
            for name in value if isinstance(value, dict) else ():
                if name not in splits:
                    known = f"; the splits are {', '.join(splits)}"
                    hint = did_you_mean(name, splits, show=str) or known
                    raise Problem((*path, name), f"unknown split{hint}")

    def check_file_name(self, splits: Sequence[str]) -> None:
        """Checks that no two of these splits share a file.

        Raises:
            Problem: Several splits would be written to one file.
        """
        file_name = self.output.file_name
        if file_name is not None and "{split}" not in file_name and len(splits) > 1:
            raise Problem(
                ("output", "file_name"),
                f"the splits {', '.join(splits)} would be written to one file; put {{split}} into "
                "the name",
            )
