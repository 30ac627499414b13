"""The value classes that travel through the pipeline.

All are frozen msgspec structs, encoded as MessagePack arrays: about a quarter of a pickle's
size, and several times as fast across a GroupByKey. Fields are only ever added at the end.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from transforms.reasons import Reason


class ImageRef(msgspec.Struct, frozen=True, array_like=True):
    """Where an image's bytes lie.

    Attributes:
        uri: The file or object that holds the bytes.
        size_bytes: Length of the image in bytes.
        version: What tells one content of `uri` from the next: modification time in
            nanoseconds on local disk, the object's generation on Google Cloud Storage.
        offset: First byte of the image in `uri`; 0 unless the image lies inside a container.
        whole: Whether the image is all of `uri` (and not a byte range of it).
    """

    uri: str
    size_bytes: int
    version: str
    offset: int = 0
    whole: bool = True


class ObjectAnnotation(msgspec.Struct, frozen=True, array_like=True):
    """One annotated object of an image.

    Attributes:
        label: The category's name, as the source gives it.
        bbox: `(xmin, ymin, xmax, ymax)` in pixels of the annotated image, which may reach
            over its border; origin at the top left corner.
        area: The object's area in pixels², as the source gives it (of the mask where there is
            one); negative where the source gives none.
        is_crowd: Whether the box stands for a group of objects.
        annotation_id: The source's id; 0 where there is none.
        segmentation: The source's segmentation, undecoded (COCO: JSON text); empty where there
            is none or no output key needs it.
    """

    label: str
    bbox: tuple[float, float, float, float]
    area: float = -1.0
    is_crowd: bool = False
    annotation_id: int = 0
    segmentation: bytes = b""


class ImageAnnotations(msgspec.Struct, frozen=True, array_like=True):
    """All that one source says about one image.

    Attributes:
        image_id: The source's id of the image, as a string.
        width: Width in pixels as the source gives it; 0 where it does not.
        height: Height in pixels as the source gives it; 0 where it does not.
        labels: Image-level class names.
        objects: The annotated objects, in the source's order.
        corrections: What was repaired or left out while parsing, `{correction: count}`
            (see `transforms.reasons.Correction`).
    """

    image_id: str
    width: int = 0
    height: int = 0
    labels: tuple[str, ...] = ()
    objects: tuple[ObjectAnnotation, ...] = ()
    corrections: Mapping[str, int] = {}


class AnnotationEntry(msgspec.Struct, frozen=True, array_like=True):
    """What an annotation file says about one key.

    Attributes:
        key: The image's path relative to the source's image root, `/`-separated; for an
            annotation that names no image, a text that says what it names.
        annotations: The annotations, encoded by `encode_annotations`: opaque until the shard
            is written.
        file_index: Which of the source's annotation files this comes from.
        position: Order within that file. Of duplicates the smallest `(file_index, position)`
            wins.
        image_id: The source's id of the image, as a string.
        defect: Why this entry cannot be used; None for a good one.
        detail: The defect in words, with the place in the source.
    """

    key: str
    annotations: bytes
    file_index: int
    position: int
    image_id: str = ""
    defect: Reason | None = None
    detail: str = ""


class Category(msgspec.Struct, frozen=True, array_like=True):
    """A class that a source declares.

    Attributes:
        name: Its name, which is its identity across sources.
        source_id: The source's own id; None where the source has names only.
        origin: The file or folder that declares it, for error messages.
    """

    name: str
    source_id: int | None = None
    origin: str = ""


class Record(msgspec.Struct, frozen=True, array_like=True):
    """An image together with its annotations: the pipeline's element, about 1 KB.

    Attributes:
        source: Which input of the config it belongs to.
        key: The image's path relative to the source's root.
        image: Where its bytes lie.
        annotations: Encoded `ImageAnnotations`.
    """

    source: str
    key: str
    image: ImageRef
    annotations: bytes


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


_encoder = msgspec.msgpack.Encoder()
_annotations_decoder = msgspec.msgpack.Decoder(ImageAnnotations)


def encode_annotations(annotations: ImageAnnotations) -> bytes:
    """Encodes annotations for `AnnotationEntry.annotations` and `Record.annotations`."""
    return _encoder.encode(annotations)


def decode_annotations(data: bytes) -> ImageAnnotations:
    """Decodes what `encode_annotations` made."""
    return _annotations_decoder.decode(data)
