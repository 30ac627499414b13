"""The source of records that a program makes."""

from __future__ import annotations

from typing import ClassVar

from shardbeam.transforms.core.kinds import Kind
from shardbeam.transforms.formats.base import Format
from shardbeam.transforms.formats.join.sources import Source


class GivenRecords(Format, frozen=True, kw_only=True):
    """Records of images with labels and boxes. Nothing is listed, and no file is read."""

    ROOTS: ClassVar[tuple[str, ...]] = ()

    @property
    def kinds(self) -> frozenset[Kind]:
        """Labels and boxes; an image may have neither."""
        return frozenset({Kind.CLASSIFICATION, Kind.DETECTION})


GIVEN_SOURCE = Source("records", GivenRecords())
