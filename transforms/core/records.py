"""The value classes that travel through the pipeline.

All are frozen msgspec structs, encoded as MessagePack arrays: about a quarter of a pickle's
size, and several times as fast across a GroupByKey. Fields are only ever added at the end.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from shardbeam.transforms.core.corrections import Change
from shardbeam.transforms.core.reasons import Exclusion, Reason

# What a source may say about an image or an object beyond what has a field of its own.
Value: TypeAlias = int | float | str


class Coding(str, enum.Enum):
    """How an image lies in its bytes.

    Attributes:
        FILE: As an image file.
        DEFLATED: As an image file, compressed with raw DEFLATE (RFC 1951), as zip archives do.
        BASE64: As an image file in base64 (RFC 4648), as JSON files hold one.
        CIFAR_PNG: As 3,072 pixel values of a CIFAR batch, to be stored as a PNG.
        CIFAR_RAW: The same, to be stored as they are.
    """

    FILE = ""
    DEFLATED = "deflated"
    BASE64 = "base64"
    CIFAR_PNG = "cifar_png"
    CIFAR_RAW = "cifar_raw"


class MaskRole(str, enum.Enum):
    """What the pixels of an image that annotates another one mean.

    Attributes:
        PANOPTIC: COCO's panoptic PNG: R + 256 G + 65536 B is the segment's id.
        SEMANTIC: One channel or a palette; each value is a class, as the format says.
        VOC_CLASS: Pascal VOC's `SegmentationClass`: each value or colour is a class.
        VOC_OBJECT: Pascal VOC's `SegmentationObject`: each value or colour is an object.
    """

    PANOPTIC = "panoptic"
    SEMANTIC = "semantic"
    VOC_CLASS = "voc_class"
    VOC_OBJECT = "voc_object"


class ImageRef(msgspec.Struct, frozen=True, array_like=True):
    """Where the bytes of an image, or of another listed file, lie.

    Attributes:
        uri: The file or object that holds the bytes.
        size_bytes: How many bytes of `uri` they are.
        version: What tells one content of `uri` from the next: modification time in
            nanoseconds on local disk, the object's generation on Google Cloud Storage.
        offset: The first byte in `uri`; 0 unless they lie inside a container.
        whole: Whether they are all of `uri` (and not a byte range of it).
        coding: How the image lies in these bytes.
        decoded_bytes: Length of the file once it is decompressed, where `coding` compresses.
        crc32: CRC-32 of the (decompressed) file as its container gives it; -1 where it does not.
        header_bytes: Of a member of a zip archive: `offset` is that of the header in front of it,
            whose length is only known by reading it; this is how long it is at most, as a rule.
        problem: Why it cannot be read, where its container says so already.
    """

    uri: str
    size_bytes: int
    version: str
    offset: int = 0
    whole: bool = True
    coding: Coding = Coding.FILE
    decoded_bytes: int = 0
    crc32: int = -1
    header_bytes: int = 0
    problem: str = ""


class ListedImage(msgspec.Struct, frozen=True, array_like=True):
    """An image as the listing finds it.

    Attributes:
        key: Its path relative to the source's root, `/`-separated.
        image: Where its bytes lie.
    """

    key: str
    image: ImageRef


class ListedFile(msgspec.Struct, frozen=True, array_like=True):
    """A listed file that says something about images, or holds several.

    Attributes:
        source: Which input of the config it belongs to.
        path: Its path below the root.
        root: Which of the source's roots.
        file: Where it lies.
        join: Of an annotation file: what it is joined to its image by.
        is_container: Whether it holds images.
    """

    source: str
    path: str
    root: int
    file: ImageRef
    join: str = ""
    is_container: bool = False


class ObjectAnnotation(msgspec.Struct, frozen=True, array_like=True):
    """One annotated object of an image.

    Attributes:
        label: The category's name, as the source gives it.
        bbox: `(xmin, ymin, xmax, ymax)` in pixels of the annotated image, which may reach
            over its border; origin at the top left corner. As for all coordinates here, in
            fractions of the image's sides where `ImageAnnotations.normalized` says so.
        area: The object's area in pixels², as the source gives it (of the mask where there is
            one); negative where the source gives none.
        is_crowd: Whether the box stands for a group of objects.
        annotation_id: The source's id; 0 where there is none.
        segmentation: JSON text in COCO's form, undecoded: a list of polygons `[x, y, …]`, or an
            RLE object; empty where there is none or no output key needs it.
        keypoints: `x, y, visibility` of each keypoint that the category declares (visibility
            0: not labelled, 1: labelled and hidden, 2: visible); empty where there are none.
        attributes: `{Example key: value}` of what the format declares as extra features of
            objects (`shardbeam.transforms.examples.features.ExtraFeature`).
    """

    label: str
    bbox: tuple[float, float, float, float]
    area: float = -1.0
    is_crowd: bool = False
    annotation_id: int = 0
    segmentation: bytes = b""
    keypoints: tuple[float, ...] = ()
    attributes: Mapping[str, Value] = {}


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """One segment of a panoptic annotation.

    Attributes:
        segment_id: Its id, which the panoptic mask's pixels hold.
        label: Its category's name.
        is_crowd: Whether it is a group of objects.
    """

    segment_id: int
    label: str
    is_crowd: bool = False


class ImageAnnotations(msgspec.Struct, frozen=True, array_like=True):
    """All that one source says about one image.

    Attributes:
        image_id: The source's id of the image, as a string.
        width: Width in pixels as the source gives it; 0 where it does not.
        height: Height in pixels as the source gives it; 0 where it does not.
        labels: Image-level class names.
        objects: The annotated objects, in the source's order.
        corrections: What was repaired or left out while parsing, `{correction: count}`
            (see `shardbeam.transforms.core.reasons.Correction`).
        normalized: Whether coordinates are fractions of the image's sides, not pixels.
        label_confidences: Confidence of each of `labels`; empty where the source gives none.
        captions: Texts that describe the image.
        segments: The segments of the panoptic mask.
        masks: Images whose pixels annotate this one, `{what they mean: where they lie}`.
        values: `{Example key: values}` of what the format declares as extra features of images
            (`shardbeam.transforms.examples.features.ExtraFeature`).
        stuff: Regions without objects, such as sky, each with a segmentation: what the map of
            classes is rendered from where no mask is one.
        changes: `{correction: the values before and after each}`, as far as they are known
            (`shardbeam.transforms.core.corrections.Corrections` keeps them).
    """

    image_id: str
    width: int = 0
    height: int = 0
    labels: tuple[str, ...] = ()
    objects: tuple[ObjectAnnotation, ...] = ()
    corrections: Mapping[str, int] = {}
    normalized: bool = False
    label_confidences: tuple[float, ...] = ()
    captions: tuple[str, ...] = ()
    segments: tuple[Segment, ...] = ()
    masks: Mapping[MaskRole, ImageRef] = {}
    values: Mapping[str, tuple[Value, ...]] = {}
    stuff: tuple[ObjectAnnotation, ...] = ()
    changes: Mapping[str, Sequence[Change]] = {}


class AnnotationEntry(msgspec.Struct, frozen=True, array_like=True):
    """What an annotation file says about one image.

    Attributes:
        key: What it is joined by: the image's path relative to the source's image root,
            `/`-separated, or what `Format.place` makes of that; for an annotation that names no
            image, a text that says what it names.
        annotations: The annotations, encoded by `encode_annotations`: opaque until the shard
            is written. Empty where the entry has a defect, or only tells split or exclusion.
        file_index: Which of the source's annotation files this comes from.
        position: Order within that file. Of duplicates the smallest `(file_index, position)`
            wins.
        image_id: The source's id of the image, as a string. Entries of one key are merged if
            they have the same id, or none; an entry with another id claims another's image.
        defect: Why this entry cannot be used; None for a good one.
        detail: The defect in words, with the place in the source.
        split: The split that the source puts the image into; empty where it does not say.
        exclusion: The rule of the source that leaves the image out, if one does.
    """

    key: str
    annotations: bytes = b""
    file_index: int = 0
    position: int = 0
    image_id: str = ""
    defect: Reason | None = None
    detail: str = ""
    split: str = ""
    exclusion: Exclusion | None = None


class Category(msgspec.Struct, frozen=True, array_like=True):
    """A class that a source declares.

    Attributes:
        name: Its name, which is its identity across sources.
        source_id: The source's own id; None where the source has names only.
        origin: The file or folder that declares it, for error messages.
        keypoints: Names of the keypoints that its objects have, in their order.
        is_thing: Whether it has countable objects (and is not stuff, such as sky).
        skeleton: Pairs of indexes into `keypoints` that a line joins where they are drawn.
        is_background: Whether the source has it for the background, and not for objects; with
            any other id than 0 that means nothing.
    """

    name: str
    source_id: int | None = None
    origin: str = ""
    keypoints: tuple[str, ...] = ()
    is_thing: bool = True
    skeleton: tuple[tuple[int, int], ...] = ()
    is_background: bool = False


class Record(msgspec.Struct, frozen=True, array_like=True):
    """An image together with its annotations: the pipeline's element, about 1 KB.

    Attributes:
        source: Which input of the config it belongs to.
        key: The image's path relative to the source's root.
        image: Where its bytes lie; None for a row of a table without images.
        annotations: Encoded `ImageAnnotations`.
        split: The split that it belongs to.
        examples: How many Examples it is expected to make.
    """

    source: str
    key: str
    image: ImageRef | None
    annotations: bytes
    split: str = ""
    examples: int = 1

    @classmethod
    def of(
        cls,
        key: str,
        *,
        image: str | ImageRef,
        split: str = "",
        labels: Sequence[str] = (),
        boxes: Sequence[tuple[str, float, float, float, float]] = (),
    ) -> Record:
        """Makes the record of an image and its annotations, for `WriteToTFRecord` and `build`.

        Args:
            key: The name of the image in the dataset, such as its path below a folder. Of several
                records with the same key one is written and the others are rejected.
            image: Path or URI of the image's file.
            split: The split that it belongs to; may be empty if there is only one, or if the config
                has `fractions`.
            labels: The classes of the image.
            boxes: `(class, xmin, ymin, xmax, ymax)` of each object, in pixels of the upright image
                from its top left corner.

        Raises:
            ValueError: The key is empty, or a class is.
        """
        if not key or "\0" in key or not all((*labels, *(label for label, *_ in boxes))):
            raise ValueError(f"record {key!r}: expected a key, and classes that are not empty")
        annotations = ImageAnnotations(
            image_id="",
            labels=tuple(dict.fromkeys(labels)),
            objects=tuple(
                ObjectAnnotation(
                    label=label, bbox=(float(xmin), float(ymin), float(xmax), float(ymax))
                )
                for label, xmin, ymin, xmax, ymax in boxes
            ),
        )
        return cls(
            source="",
            key=key,
            image=image if isinstance(image, ImageRef) else ImageRef(image, 0, ""),
            annotations=encode_annotations(annotations),
            split=split,
        )

    @property
    def size_bytes(self) -> int:
        """Length of the image, 0 where there is none."""
        return 0 if self.image is None else self.image.size_bytes

    @property
    def expected_bytes(self) -> int:
        """Length of its Examples, as far as that shows before they are made."""
        return self.examples * self.size_bytes + len(self.annotations)


class Reject(msgspec.Struct, frozen=True, kw_only=True):
    """An input that could not be used, and why.

    Attributes:
        split: The split it would have been in.
        source: Which input of the config it belongs to.
        key: The image's key, or what an annotation names instead of one.
        stage: Where it was rejected: `list`, `join`, `split` or `encode`.
        reason: The stable reason code.
        detail: The cause and the place in the source, for a person.
        listed: Whether it is a listed image (and not a reference to one that is missing).
    """

    split: str
    source: str
    key: str
    stage: str
    reason: Reason
    detail: str
    listed: bool


class Corrected(
    msgspec.Struct, frozen=True, kw_only=True, rename={"before": "from", "after": "to"}
):
    """A correction in an image that was written, and what it changed.

    Attributes:
        split: The image's split.
        source: Which input of the config it belongs to.
        key: The image's key.
        what: The correction's stable code.
        before: The value before it, `from` in JSON: a box, a size, a class; None if unknown.
        after: The value after it, `to` in JSON; None if unknown, and where something is dropped.
    """

    split: str
    source: str
    key: str
    what: str
    before: Any = None
    after: Any = None


_encoder = msgspec.msgpack.Encoder()
_annotations_decoder = msgspec.msgpack.Decoder(ImageAnnotations)


def encode_annotations(annotations: ImageAnnotations) -> bytes:
    """Encodes annotations for `AnnotationEntry.annotations` and `Record.annotations`."""
    return _encoder.encode(annotations)


def decode_annotations(data: bytes) -> ImageAnnotations:
    """Decodes what `encode_annotations` made."""
    return _annotations_decoder.decode(data)
