"""What is shuffled has a type: runners refuse, or panic over, what they cannot take apart."""

from __future__ import annotations

from pathlib import Path

import apache_beam as beam
from apache_beam import pipeline as beam_pipeline
from apache_beam.typehints import typehints

from tests.support.dataset import coco_words
from tests.support.graph import build_graph

SHUFFLES = (beam.GroupByKey, beam.CombinePerKey, beam.Reshuffle, beam.CombineGlobally)


class _Shuffled(beam_pipeline.PipelineVisitor):
    """Collects what goes into a shuffle: `{step: element type}`."""

    def __init__(self) -> None:
        self.types: dict[str, object] = {}

    def enter_composite_transform(self, transform_node: beam_pipeline.AppliedPTransform) -> None:
        self.visit_transform(transform_node)

    def visit_transform(self, transform_node: beam_pipeline.AppliedPTransform) -> None:
        if isinstance(transform_node.transform, SHUFFLES):
            for given in transform_node.inputs:
                self.types[transform_node.full_label] = given.element_type


def holds_anything(kind: object) -> bool:
    """Says whether a type leaves open what an element is."""
    if isinstance(kind, typehints.TupleConstraint):
        # A sum of digests, which Beam's coder of `int` does not hold, and keys of Beam's own.
        return any(map(holds_anything, kind.tuple_types[:1]))
    return kind is typehints.Any


def test_every_step_before_a_shuffle_declares_its_type(shapes: Path, tmp_path: Path) -> None:
    pipeline = build_graph(*coco_words(shapes, tmp_path / "out"))
    visitor = _Shuffled()
    pipeline.visit(visitor)
    assert "CommitDataset/SpreadMoves" in visitor.types
    assert not [label for label, kind in visitor.types.items() if holds_anything(kind)]
