"""The label in the file's name, found by a regular expression."""

from __future__ import annotations

import re
from collections.abc import Sequence

from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.reasons import Exclusion, Reason
from shardbeam.transforms.core.records import ImageAnnotations
from shardbeam.transforms.examples.features import (
    ExtraFeature,
    FeatureKind,
    FeatureRole,
    FeatureSpec,
)
from shardbeam.transforms.formats.base import Format, Kind
from shardbeam.transforms.formats.names import listing_exclusion

_LABEL = "label"
# What stands after the last `_` of the name, up to its extension.
_AFTER_LAST_UNDERSCORE = r"_(?P<label>[^_/]+)\.[^._/]+$"


class FilenameLabelFormat(Format):
    """The label in the file's name.

    Args:
        pattern: A regular expression (Python's `re`), searched in the image's key. Its group
            `label` is the class; any other named group is a text feature of that name, empty where
            the group takes no part in the match. By default the label is what stands after the
            last `_` of the name, without the extension.

    Raises:
        ValueError: `pattern` is no regular expression, or has no named group.
    """

    def __init__(self, *, pattern: str | None = None) -> None:
        try:
            self._pattern = re.compile(_AFTER_LAST_UNDERSCORE if pattern is None else pattern)
        except re.error as error:
            raise ValueError(f"pattern: no regular expression: {error}") from error
        self._groups = tuple(name for name in self._pattern.groupindex if name != _LABEL)
        self._is_labelled = _LABEL in self._pattern.groupindex
        if not self._is_labelled and not self._groups:
            raise ValueError(
                "pattern: expected a named group, such as (?P<label>[a-z]+): its text is the class"
            )
        self.kinds = frozenset({Kind.CLASSIFICATION} if self._is_labelled else ())

    def extra_features(self) -> Sequence[ExtraFeature]:
        """A text for each further named group."""
        return tuple(
            ExtraFeature(
                FeatureSpec(name, FeatureKind.BYTES, repeated=False, role=FeatureRole.TEXT)
            )
            for name in self._groups
        )

    def annotate_listed(self, key: str) -> ImageAnnotations | Exclusion:
        """Takes an image's class from its name; see the base class.

        Raises:
            RejectedError: The pattern finds no label in it.
        """
        exclusion = listing_exclusion(key)
        if exclusion is not None:
            return exclusion
        match = self._pattern.search(key)
        if match is None or (self._is_labelled and not match[_LABEL]):
            raise RejectedError(
                Reason.NAME_NOT_MATCHED,
                f"the pattern ({self._pattern.pattern}) finds no "
                f"{_LABEL if self._is_labelled else 'match'} in the name",
            )
        return ImageAnnotations(
            image_id=key,
            labels=(match[_LABEL],) if self._is_labelled else (),
            values={name: (match[name] or "",) for name in self._groups},
        )
