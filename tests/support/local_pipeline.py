"""Pipelines for the tests of single transforms."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from apache_beam.testing import test_pipeline
from apache_beam.testing.util import equal_to

from shardbeam.pipelines.runners.options import LocalRunner, make_options
from shardbeam.transforms.core.records import AnnotationEntry, ListedImage
from shardbeam.transforms.formats.join.sources import decode_join_key, decode_join_value


def local_pipeline() -> test_pipeline.TestPipeline:
    """A pipeline that runs in this process as soon as its `with` block ends."""
    options = make_options()
    return test_pipeline.TestPipeline(runner=LocalRunner(options=options), options=options)


def summaries(
    expected: Iterable[object], *, summary: Callable[[Any], object]
) -> Callable[[Any], None]:
    """Matches a PCollection whose elements have these summaries, in any order."""
    matches = equal_to(expected)

    def match(actual: Iterable[Any]) -> None:
        matches([summary(element) for element in actual])

    return match


def decode_value(
    element: tuple[bytes, bytes],
) -> tuple[tuple[str, str], ListedImage | AnnotationEntry]:
    """The elements for the join: source and join key, with the image or entry."""
    key, value = element
    source, folded = decode_join_key(key)
    _, join_key, item = decode_join_value(value, folded=folded)
    return (source, join_key), item
