"""SummarizeListing: how much was listed, counted from the listing itself."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import PCollection

from shardbeam.transforms.coders import register_coders
from shardbeam.transforms.core.records import ImageRef, ListedImage, Reject
from shardbeam.transforms.core.sharding import SplitAssignment
from shardbeam.transforms.dataset.listing import (
    ListingSummary,
    summarize_image,
    summarize_listing,
    summarize_member,
    summarize_other,
    summarize_reject,
)
from shardbeam.transforms.sum_by_split import SumBySplit, merge_sums

register_coders()


@dataclasses.dataclass(eq=False, kw_only=True)
class SummarizeListing(beam.PTransform[Any, PCollection[ListingSummary]]):
    """Counts and fingerprints all that was listed: one `ListingSummary`.

    Args:
        splits: Which split a key belongs to.
        contained: `((source, join), ListedImage)` for each image inside a container.
    """

    splits: SplitAssignment
    contained: PCollection[tuple[tuple[str, str], ListedImage]] | None = None

    def expand(
        self,
        inputs: tuple[
            PCollection[tuple[tuple[str, str], ListedImage]],
            PCollection[ImageRef],
            PCollection[Reject],
        ],
    ) -> PCollection[ListingSummary]:
        """Adds the step: `(images, others, rejects) | SummarizeListing(...)`, of `ListImages`."""
        images, others, rejects = inputs
        image = functools.partial(summarize_image, splits=self.splits)
        member = functools.partial(summarize_member, splits=self.splits)
        parts = [
            images | "SummarizeImages" >> beam.ParDo(SumBySplit(image)),
            others | "SummarizeOthers" >> beam.ParDo(SumBySplit(summarize_other)),
            rejects | "SummarizeRejects" >> beam.ParDo(SumBySplit(summarize_reject)),
        ]
        if self.contained is not None:
            parts.append(self.contained | "SummarizeContained" >> beam.ParDo(SumBySplit(member)))
        return (
            parts
            | beam.Flatten()
            | "Add" >> beam.CombineGlobally(merge_sums)
            | "Total" >> beam.Map(summarize_listing)
        )
