"""AssignSplit: which split an example belongs to."""

from __future__ import annotations

import apache_beam as beam
from apache_beam.pvalue import PCollection

from shardbeam.transforms.coders import register_coders
from shardbeam.transforms.core.records import Record

register_coders()


class AssignSplit(beam.PTransform[PCollection[Record], PCollection[tuple[str, Record]]]):
    """Keys each record by its split, which the join has found: `Record` → `(split, Record)`."""

    def expand(self, records: PCollection[Record]) -> PCollection[tuple[str, Record]]:
        """Adds the step to a pipeline."""
        assigned = beam.Map(assign_split).with_output_types(tuple[str, Record])
        return records | "Assign" >> assigned


def assign_split(record: Record) -> tuple[str, Record]:
    """Keys one record by its split."""
    return record.split, record
