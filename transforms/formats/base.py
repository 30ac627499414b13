"""What a dataset format is: Beam-free parsing, told apart from where and how it runs."""

from __future__ import annotations

import abc
import enum
from collections.abc import Iterator, Sequence

from transforms.reasons import Exclusion
from transforms.records import AnnotationEntry, Category, ImageAnnotations
from transforms.storage import Storage


class Kind(str, enum.Enum):
    """A group of Example keys that a format fills."""

    CLASSIFICATION = "classification"
    DETECTION = "detection"


class Format(abc.ABC):
    """How one source of the config is read.

    A format is made from the source's settings in every process that needs it, so all that it
    knows follows from them. It sees annotation files and image names, never pixels.

    Attributes:
        kinds: The groups of Example keys that it fills.
    """

    kinds: frozenset[Kind]

    def annotation_files(self) -> Sequence[str]:
        """URIs of the files that `read_annotations` reads, in order; none by default."""
        return ()

    def read_annotations(
        self, *, storage: Storage, file_index: int
    ) -> Iterator[AnnotationEntry | Category]:
        """Parses one annotation file, declaring its categories and an entry for each image.

        Args:
            storage: Reads the file.
            file_index: Which of `annotation_files()`.

        Yields:
            Every `Category` of the file, and an `AnnotationEntry` for each image that it
            names, in any order. Entries that cannot be used carry a `defect`.

        Raises:
            InputError: The file cannot be read or is not what it should be.
        """
        raise TypeError(f"{type(self).__name__} reads no annotation files")
        yield

    def annotate_listed(self, key: str) -> ImageAnnotations | Exclusion | None:
        """Says what a listed image's own name tells about it.

        Args:
            key: The image's path relative to its root, `/`-separated.

        Returns:
            The annotations; or the rule that leaves the image out; or None where the name
            tells nothing, and the annotation files are to be asked (the default).

        Raises:
            RejectedError: The name should tell, and does not.
        """
        del key
        return None
