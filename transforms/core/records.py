"""The value classes that travel through the pipeline.

All are frozen msgspec structs, encoded as MessagePack arrays: about a quarter of a pickle's
size, and several times as fast across a GroupByKey. Fields are only ever added at the end.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import msgspec

from shardbeam.configs.decoding import MsgpackDecoder
from shardbeam.transforms.core.corrections import Change
from shardbeam.transforms.core.reasons import Exclusion, Reason

T = TypeVar("T")

# A value that a source gives for an image or an object, and that has no field here.
Value: TypeAlias = int | float | str

# The value of objects in black and white maps.
OBJECT_VALUE = 255
# The blurred borders of objects cover less than this share of the pixels.
MAX_BLURRED_SHARE = 0.05
# Stands for the class id of values that no map may hold.
NO_VALUE = -1

_encoder = msgspec.msgpack.Encoder()


class Coding(str, enum.Enum):
    """How bytes hold an image.

    Attributes:
        FILE: As an image file.
        DEFLATED: As an image file, compressed with raw DEFLATE (RFC 1951), as zip archives do.
        BASE64: As an image file in base64 (RFC 4648), as in JSON files.
        CIFAR_PNG: As 3,072 pixel values of a CIFAR batch, to be stored as a PNG.
        CIFAR_RAW: As 3,072 pixel values of a CIFAR batch, to be stored unchanged.
        GRAY: As gray values of one byte each, row by row, to be stored as a PNG.
        GRAY_GZIP: Like GRAY, in a gzip file: the range is one of its decompressed content.
    """

    FILE = ""
    DEFLATED = "deflated"
    BASE64 = "base64"
    CIFAR_PNG = "cifar_png"
    CIFAR_RAW = "cifar_raw"
    GRAY = "gray"
    GRAY_GZIP = "gray_gzip"


class MaskRole(str, enum.Enum):
    """The meaning of the pixels of an image that annotates another one.

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


def mask_key(role: MaskRole, *, number: str = "") -> str:
    """Returns the key of a mask in `ImageAnnotations.masks`.

    Args:
        role: What its pixels mean.
        number: The end of its name, if an image has several such masks; empty for the first one.
    """
    return f"{role.value}#{number}" if number else role.value


def role_of_mask(key: str) -> MaskRole:
    """Returns what the pixels of a mask mean, by its key."""
    return MaskRole(key.partition("#")[0])


def masks_of(masks: Mapping[str, T], *, role: MaskRole) -> list[T]:
    """Returns the masks whose pixels mean the same, in order of their keys."""
    return [mask for key, mask in sorted(masks.items()) if role_of_mask(key) is role]


class MaskValues(msgspec.Struct, frozen=True, array_like=True):
    """What the values of a source's maps of classes mean.

    Attributes:
        ids: `(value, class id of the source)` of each value that maps may hold; None for pixels
            that readers should ignore. Empty if values are class ids themselves, and 255 is to be
            ignored.
        is_cut: Whether values between 0 and 255 are blurred borders of objects: from 128 on they
            count as 255, lower ones as 0. If the last id is `NO_VALUE`, each entry of `ids` is for
            all values up to that of the next one instead.
        are_colours: Whether the values are colours, R << 16 | G << 8 | B, in ascending order.
    """

    ids: tuple[tuple[int, int | None], ...] = ()
    is_cut: bool = False
    are_colours: bool = False

    @property
    def are_ranges(self) -> bool:
        """Whether each entry of `ids` is for a range of values."""
        return self.is_cut and self.ids[-1][1] == NO_VALUE


class ImageRef(msgspec.Struct, frozen=True, array_like=True):
    """The place of the bytes of an image, or of another listed file.

    Attributes:
        uri: The file or object that holds the bytes.
        size_bytes: The number of bytes.
        version: Changes when the content of `uri` changes: the modification time in nanoseconds on
            local disk, the object's generation on Google Cloud Storage.
        offset: Position of the first byte in `uri`; 0 unless `uri` is a container.
        whole: Whether the bytes are all of `uri`, and not a range of it.
        coding: How the bytes hold the image.
        decoded_bytes: Length of the decompressed file, if `coding` or `uri` compresses.
        crc32: CRC-32 of the (decompressed) file, as its container gives it; -1 if it gives none.
        header_bytes: For a member of a zip archive, a guess at the length of the header that begins
            at `offset`, before the member's bytes; it is mostly long enough. 0 for other files.
        problem: Why the file cannot be read, if its container shows that already.
        width: Pixels in a row, if `coding` is one of bare gray values.
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
    width: int = 0

    @property
    def most_bytes(self) -> int:
        """The length of the bytes, or of the decompressed file if that is longer."""
        return max(self.size_bytes, self.decoded_bytes if self.coding is Coding.DEFLATED else 0)


class ListedImage(msgspec.Struct, frozen=True, array_like=True):
    """A listed image.

    Attributes:
        key: Its path relative to the source's root, `/`-separated.
        image: The place of its bytes.
    """

    key: str
    image: ImageRef


class SizedImage(msgspec.Struct, frozen=True, array_like=True):
    """An image with the size that its annotations give.

    Attributes:
        image: The place of its bytes.
        width: The annotated width in pixels.
        height: The annotated height in pixels.
    """

    image: ImageRef
    width: int
    height: int


class ListedFile(msgspec.Struct, frozen=True, array_like=True):
    """A listed file that annotates an image, or holds several images.

    Attributes:
        source: The source's name.
        path: Its path below the root.
        root: Number of the source's root.
        file: The place of its bytes.
        join: The text that joins an annotation file to its image.
        is_container: Whether it holds images.
        is_beside: Whether it only counts if the image beside it is listed.
    """

    source: str
    path: str
    root: int
    file: ImageRef
    join: str = ""
    is_container: bool = False
    is_beside: bool = False


class ObjectAnnotation(msgspec.Struct, frozen=True, array_like=True):
    """One annotated object of an image.

    Attributes:
        label: The category's name, as the source gives it.
        bbox: `(xmin, ymin, xmax, ymax)` from the top left corner, in pixels of the annotated image;
            it may reach over the border. If `ImageAnnotations.normalized` is set, all coordinates
            here are fractions of the image's sides.
        area: The area that the source gives, in pixels², of the mask if there is one; negative if
            the source gives none.
        is_crowd: Whether the box stands for a group of objects.
        annotation_id: The source's id; 0 where there is none.
        segmentation: JSON text in COCO's form, undecoded: a list of polygons `[x, y, …]`, or an
            RLE object; empty where there is none or no output key needs it.
        keypoints: `x, y, visibility` of each keypoint that the category declares (visibility
            0: not labelled, 1: labelled and hidden, 2: visible); empty where there are none.
        attributes: `{Example key: value}` of the extra features that the format declares for
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
    """The annotations of one image from one source.

    Attributes:
        image_id: The source's id of the image, as a string.
        width: Width in pixels that the source gives; 0 if it gives none.
        height: Height in pixels that the source gives; 0 if it gives none.
        labels: Image-level class names.
        objects: The annotated objects, in the source's order.
        corrections: Repairs and omissions of the parser, `{correction: count}`
            (see `shardbeam.transforms.core.reasons.Correction`).
        normalized: Whether coordinates are fractions of the image's sides, not pixels.
        label_confidences: Confidence of each of `labels`; empty where the source gives none.
        captions: Texts that describe the image.
        segments: The segments of the panoptic mask.
        masks: Images whose pixels annotate this one, `{mask_key: place}`.
        values: `{Example key: values}` of the extra features that the format declares for images
            (`shardbeam.transforms.examples.features.ExtraFeature`).
        stuff: Regions without objects, such as sky, each with a segmentation. If no mask is a map
            of classes, the map is drawn from these.
        changes: `{correction: the values before and after each}`, as far as they are known
            (`shardbeam.transforms.core.corrections.Corrections` keeps them).
        lost: `{class: {shape: objects}}` of the objects that `corrections` counts as
            `OBJECT_WITHOUT_BOX_DROPPED`, as far as their classes are known.
        mask_values: What the values of a map of classes in `masks` mean.
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
    masks: Mapping[str, ImageRef] = {}
    values: Mapping[str, tuple[Value, ...]] = {}
    stuff: tuple[ObjectAnnotation, ...] = ()
    changes: Mapping[str, Sequence[Change]] = {}
    lost: Mapping[str, Mapping[str, int]] = {}
    mask_values: MaskValues = MaskValues()


class AnnotationEntry(msgspec.Struct, frozen=True, array_like=True):
    """The entry of one image in an annotation file.

    Attributes:
        key: The text that joins the entry to its image (`Place.join`). If the entry names no image,
            a text that describes the entry.
        annotations: The annotations, encoded by `encode_annotations`: opaque until the shard
            is written. Empty if the entry has a defect, or only gives a split or an exclusion.
        file_index: Number of the annotation file among those of the source.
        position: Order within that file. Among duplicates, the smallest `(file_index, position)`
            wins.
        image_id: The source's id of the image, as a string. Entries of one key with several ids
            are merged unless they give the image different sizes; the first id stays.
        defect: Why this entry cannot be used; None if it can.
        detail: The defect in words, with the place in the source.
        split: The split that the source puts the image into; empty if it names none.
        exclusion: The rule of the source that leaves the image out, if one does.
        image: URI and offset of the only image that the entry is about, if it lies beside that in
            a container: another image with the same key is a duplicate.
        origin: The file or the row that says all about the image, in words; empty where several may
            annotate an image. Of one image's entries with an origin the first is used. Those with
            equal annotations are copies, and the others become rejects.
        outlines: How many of its objects have an outline that is not written, because the config
            asks for no masks.
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
    image: tuple[str, int] | None = None
    origin: str = ""
    outlines: int = 0


class Category(msgspec.Struct, frozen=True, array_like=True):
    """A class that a source declares.

    Attributes:
        name: Its name, which is its identity across sources.
        source_id: The source's own id; None where the source has names only.
        origin: The file or folder that declares it, for error messages.
        keypoints: Names of the keypoints that its objects have, in their order.
        is_thing: Whether it has countable objects (and is not stuff, such as sky).
        skeleton: Pairs of indexes into `keypoints`; drawings join each pair by a line.
        is_background: Whether it stands for the background in its source, and not for objects.
            This only counts if its id is 0.
        lost: How an object of it is drawn that cannot be read, such as `point`, and the fix, if
            there is one. It is then no declaration: the class is known, and may not be written.
    """

    name: str
    source_id: int | None = None
    origin: str = ""
    keypoints: tuple[str, ...] = ()
    is_thing: bool = True
    skeleton: tuple[tuple[int, int], ...] = ()
    is_background: bool = False
    lost: str = ""


class Record(msgspec.Struct, frozen=True, array_like=True):
    """An image together with its annotations: the pipeline's element, about 1 KB.

    Attributes:
        source: The source's name.
        key: The image's path relative to the source's root.
        image: The place of its bytes; None for a row of a table without images.
        annotations: Encoded `ImageAnnotations`.
        split: The split that it belongs to.
        examples: The expected number of its Examples.
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
            key: The name of the image in the dataset, such as its path below a folder. If
                several records have the same key, one is written and the others are rejected.
            image: Path or URI of the image's file.
            split: The split that it belongs to; may be empty if there is only one, or if the config
                has `fractions`.
            labels: The classes of the image.
            boxes: `(class, xmin, ymin, xmax, ymax)` of each object, in pixels of the upright image
                from its top left corner.

        Raises:
            ValueError: The key or a class is empty.
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
        """Length of the image; 0 if there is none."""
        return 0 if self.image is None else self.image.size_bytes

    @property
    def most_bytes(self) -> int:
        """Length of the image, or of the decompressed image if that is longer."""
        return 0 if self.image is None else self.image.most_bytes

    @property
    def expected_bytes(self) -> int:
        """The expected length of its Examples."""
        return self.examples * self.size_bytes + len(self.annotations)


class Reject(msgspec.Struct, frozen=True, kw_only=True):
    """An input that could not be used, and why.

    Attributes:
        split: The split it would have been in.
        source: The source's name.
        key: The image's key, or the name that an annotation gives.
        stage: The step that rejected it: `list`, `join`, `split` or `encode`.
        reason: The stable reason code.
        detail: The cause and the place in the source, in words.
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
        source: The source's name.
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


class _ImageId(msgspec.Struct, array_like=True):
    """The first field of `ImageAnnotations`; decoding skips the others."""

    image_id: str


class _ImageSize(msgspec.Struct, array_like=True):
    """The first fields of `ImageAnnotations`."""

    image_id: str
    width: int = 0
    height: int = 0


_annotations_decoder = MsgpackDecoder(ImageAnnotations)
_image_id_decoder = MsgpackDecoder(_ImageId)
_image_size_decoder = MsgpackDecoder(_ImageSize)


def encode_annotations(annotations: ImageAnnotations) -> bytes:
    """Encodes annotations for `AnnotationEntry.annotations` and `Record.annotations`."""
    return _encoder.encode(annotations)


def decode_annotations(data: bytes) -> ImageAnnotations:
    """Decodes what `encode_annotations` made."""
    return _annotations_decoder.decode(data)


def image_id_of(data: bytes) -> str:
    """Decodes only the image's id of what `encode_annotations` made."""
    return _image_id_decoder.decode(data).image_id


def annotated_size(data: bytes) -> tuple[int, int]:
    """Decodes only the image's width and height of what `encode_annotations` made."""
    size = _image_size_decoder.decode(data)
    return size.width, size.height
