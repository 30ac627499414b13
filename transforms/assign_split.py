"""AssignSplit: which split an example belongs to."""

from __future__ import annotations

import dataclasses

import apache_beam as beam
from apache_beam.pvalue import PCollection

from transforms.coders import register_coders
from transforms.records import Record
from transforms.sharding import SplitAssignment

register_coders()


@dataclasses.dataclass(eq=False, kw_only=True)
class AssignSplit(beam.PTransform[PCollection[Record], PCollection[tuple[str, Record]]]):
    """Keys each record by its split: `Record` → `(split, Record)`.

    Args:
        splits: Which split a key belongs to.
    """

    splits: SplitAssignment

    def expand(self, records: PCollection[Record]) -> PCollection[tuple[str, Record]]:
        """Adds the step to a pipeline."""
        assigned = beam.Map(assign_split, splits=self.splits).with_output_types(tuple[str, Record])
        return records | "Assign" >> assigned


def assign_split(record: Record, *, splits: SplitAssignment) -> tuple[str, Record]:
    """Keys one record by its split."""
    return splits.split_of(source=record.source, key=record.key), record
