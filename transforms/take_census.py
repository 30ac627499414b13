"""TakeCensus: merges everything that was counted."""

from __future__ import annotations

import apache_beam as beam
from apache_beam.pvalue import PCollection

from shardbeam.transforms.dataset.census import Census, merge_censuses


class TakeCensus(beam.PTransform[tuple[PCollection[Census], ...], PCollection[Census]]):
    """Merges the counts of all bundles: `(listed.census, …) | TakeCensus()` → one `Census`.

    Each bundle of a step emits one census. If Beam repeats a bundle, the new census replaces the
    old one, so that nothing is counted twice.
    """

    def expand(self, censuses: tuple[PCollection[Census], ...]) -> PCollection[Census]:
        """Adds the step to a pipeline."""
        merge = beam.CombineGlobally(merge_censuses).with_input_types(Census)
        return (
            censuses
            | beam.Flatten()
            | "Merge" >> merge.with_output_types(Census).without_defaults()
        )
