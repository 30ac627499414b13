"""The label in the file's name, found by a regular expression."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Annotated

from shardbeam.configs.keys import named
from shardbeam.configs.problem import Problem, compile_pattern
from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.reasons import Exclusion, Reason
from shardbeam.transforms.core.records import ImageAnnotations
from shardbeam.transforms.core.text import search
from shardbeam.transforms.examples.features import ExtraFeature
from shardbeam.transforms.formats.base import Kind
from shardbeam.transforms.formats.names import listing_exclusion
from shardbeam.transforms.formats.parsing.table_columns import ColumnType, column_feature
from shardbeam.transforms.formats.split_folders import SplitFolderFormat

_LABEL = "label"
# The text between the last `_` of the name and its extension.
_AFTER_LAST_UNDERSCORE = r"_(?P<label>[^_/]+)\.[^._/]+$"


class FilenameLabelFormat(SplitFolderFormat, frozen=True, kw_only=True):
    """The label in the file's name.

    Attributes:
        pattern: A regular expression (Python's `re`) that is searched in the image's key. Its
            group `label` is the class. Each other named group becomes a text feature of that name,
            which is empty where the group takes no part in the match. By default the label is the
            text between the last `_` of the name and its extension.
    """

    SUMMARY = "the label in the file's name, found by a regular expression"
    single_label = True

    pattern: Annotated[
        str, named("regular expression whose group `label` is the label", metavar="REGEX")
    ] = _AFTER_LAST_UNDERSCORE

    def __post_init__(self) -> None:
        try:
            groups = self._all_groups
        except ValueError as error:
            raise Problem(("pattern",), f"expected a regular expression: {error}") from error
        if not groups:
            raise Problem(
                ("pattern",),
                "expected a named group, such as (?P<label>[a-z]+): its text is the class",
            )

    @functools.cached_property
    def _all_groups(self) -> Sequence[str]:
        return list(compile_pattern(self.pattern).groupindex)

    @property
    def kinds(self) -> frozenset[Kind]:
        """Labels, if the pattern has the group `label`."""
        return frozenset({Kind.CLASSIFICATION} if _LABEL in self._all_groups else ())

    def extra_features(self) -> Sequence[ExtraFeature]:
        """Declares a text for each other named group."""
        text = ColumnType("string")
        return [
            column_feature(name, text, per_object=False)
            for name in self._all_groups
            if name != _LABEL
        ]

    def annotate_listed(self, key: str) -> ImageAnnotations | Exclusion:
        """Reads an image's class off its name.

        Raises:
            RejectedError: The pattern finds no label in the name.
            InputError: The search takes too long.
        """
        exclusion = listing_exclusion(key)
        if exclusion is not None:
            return exclusion
        match = search(self.pattern, key, setting="pattern")
        groups = {} if match is None else match.groupdict(default="")
        label = groups.pop(_LABEL, None)
        if match is None or label == "":
            raise RejectedError(
                Reason.NAME_NOT_MATCHED,
                f"the pattern ({self.pattern}) finds no "
                f"{_LABEL if _LABEL in self._all_groups else 'match'} in the name",
            )
        return ImageAnnotations(
            image_id=key,
            labels=() if label is None else (label,),
            values={name: (text,) for name, text in groups.items()},
        )
