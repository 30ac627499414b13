"""The graph gathers and shuffles only where docs/internals/scale.md says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam import pipeline as beam_pipeline
from apache_beam import pvalue
from apache_beam.typehints import typehints

from tests.support.dataset import coco_words
from tests.support.graph import build_graph, count_steps

DOCS = Path(__file__).parents[2] / "docs" / "internals"

# Elements of one key go to one worker.
GROUPS = {
    "JoinAnnotations/GroupByKey",
    "WriteShards/GroupByKey",
    "FindDuplicates/GroupByKey",
    "CommitDataset/GroupByFile",
}
# Sums that workers make of their own elements first: what is gathered is one of each worker's.
COMBINES = {"MergeCounts/Merge", "CommitDataset/CountRejects", "CommitDataset/MergeStatistics"}
# One element, or one a split.
SMALL_SIDE_INPUTS = {
    "CheckJoin",
    "BuildLabelMap",
    "WriteShards/PlanShards",
    "CommitDataset/CountRejects",
    "CommitDataset/MergeStatistics",
    "FindDuplicates/Report",
    "CommitDataset/Finish",
}
# A number for each batch of files, and the counts of each bundle of shards.
BUNDLE_SIDE_INPUTS = {
    "CommitDataset/Move",
    "CommitDataset/CheckMoved",
    "CommitDataset/ClearStaging",
    "FindDuplicates/PackRows/ParDo(_PackFn)",
}
# {step, side input}: what grows with the number of shards, and with nothing else.
SIDE_INPUTS_OF_SHARDS = {
    ("CommitDataset/Gate", "WriteShards/WriteShard"),
    ("CommitDataset/Gate", "CommitDataset/WriteRejects"),
    ("CommitDataset/Finish", "WriteShards/WriteShard"),
    ("CommitDataset/Finish", "CommitDataset/WriteRejects"),
    ("FindDuplicates/Report", "WriteShards/WriteShard"),
    ("FindDuplicates/Report", "FindDuplicates/MatchRows"),
}


class _Gathered(beam_pipeline.PipelineVisitor):
    """Collects what is grouped, what is combined, and what is given to each worker as a whole."""

    def __init__(self) -> None:
        self.groups: set[str] = set()
        self.combines: set[str] = set()
        self.spreads: set[str] = set()
        self.side_inputs: set[tuple[str, str]] = set()

    def enter_composite_transform(self, transform_node: beam_pipeline.AppliedPTransform) -> None:
        self.visit_transform(transform_node)

    def visit_transform(self, transform_node: beam_pipeline.AppliedPTransform) -> None:
        label = transform_node.full_label
        within = (*self.combines, *self.spreads)
        if label.startswith(tuple(f"{outer}/" for outer in within)):
            return
        if isinstance(transform_node.transform, (beam.CombinePerKey, beam.CombineGlobally)):
            self.combines.add(label)
        elif isinstance(transform_node.transform, beam.Reshuffle):
            self.spreads.add(label)
        elif isinstance(transform_node.transform, beam.GroupByKey):
            self.groups.add(label)
        for side_input in transform_node.side_inputs or ():
            self.side_inputs.add((label, self._name(side_input.pvalue)))

    def _name(self, values: pvalue.PCollection[Any]) -> str:
        assert values.producer is not None
        label = values.producer.full_label
        for combine in self.combines:
            if label.startswith(f"{combine}/"):
                return combine
        step = label.removesuffix("/ParDo(_WriteShardFn)")
        # Its main output has no tag: the shards, and not the rejects.
        return step if step == label or values.tag is None else f"{step}.{values.tag}"


@pytest.fixture(scope="module")
def pipeline(shapes: Path) -> beam.Pipeline:
    return build_graph(*coco_words(shapes, shapes.parent / "out"))


def test_nothing_is_gathered_but_what_the_page_on_scale_bounds(pipeline: beam.Pipeline) -> None:
    gathered = _Gathered()
    pipeline.visit(gathered)
    assert gathered.groups == GROUPS
    assert gathered.combines == COMBINES
    # For all workers: moves, checks and what is cleared.
    assert "CommitDataset/SpreadBatches" in gathered.spreads
    bounded = SMALL_SIDE_INPUTS | BUNDLE_SIDE_INPUTS
    growing = {(step, name) for step, name in gathered.side_inputs if name not in bounded}
    assert growing == SIDE_INPUTS_OF_SHARDS
    text = (DOCS / "scale.md").read_text(encoding="utf-8")
    for name in (*GROUPS, *COMBINES, *(step for step, _ in SIDE_INPUTS_OF_SHARDS)):
        assert f"`{name.partition('/CombineGlobally')[0]}`" in text


def test_the_graph_has_as_many_steps_as_the_page_on_design_explains(
    pipeline: beam.Pipeline,
) -> None:
    steps = count_steps(pipeline)
    assert f" has {steps} Beam steps" in (DOCS / "design.md").read_text(encoding="utf-8")


# Runners refuse, or panic over, what they cannot take apart.

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
    """Returns whether a type leaves open what an element is."""
    if isinstance(kind, typehints.TupleConstraint):
        # A sum of digests, which Beam's coder of `int` does not hold, and keys of Beam's own.
        return any(map(holds_anything, kind.tuple_types[:1]))
    return kind is typehints.Any


def test_every_step_before_a_shuffle_declares_its_type(pipeline: beam.Pipeline) -> None:
    visitor = _Shuffled()
    pipeline.visit(visitor)
    assert "CommitDataset/SpreadBatches" in visitor.types
    assert not [label for label, kind in visitor.types.items() if holds_anything(kind)]
