"""SummarizeListing: how much was listed, counted from the listing itself."""

from __future__ import annotations

import dataclasses
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import PCollection
from apache_beam.transforms import combiners

from transforms.coders import register_coders
from transforms.output.listing import (
    ListingSummary,
    add_images,
    summarize_image,
    summarize_listing,
    summarize_member,
    summarize_other,
    summarize_reject,
)
from transforms.records import ImageRef, ListedImage, Reject
from transforms.sharding import SplitAssignment

register_coders()

# A split, and a count with a fingerprint, which is too large for the coder of an `int`.
_Counted = tuple[str, Any]


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
        parts = [
            images
            | "SummarizeImages"
            >> beam.Map(summarize_image, splits=self.splits).with_output_types(_Counted),
            others | "SummarizeOthers" >> beam.Map(summarize_other).with_output_types(_Counted),
            rejects | "SummarizeRejects" >> beam.Map(summarize_reject).with_output_types(_Counted),
        ]
        if self.contained is not None:
            parts.append(
                self.contained
                | "SummarizeContained"
                >> beam.Map(summarize_member, splits=self.splits).with_output_types(_Counted)
            )
        return (
            parts
            | beam.Flatten()
            | "Add" >> beam.CombinePerKey(add_images)
            | "ToDict" >> combiners.ToDict()
            | "Total" >> beam.Map(summarize_listing)
        )
