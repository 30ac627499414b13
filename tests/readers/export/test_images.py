"""What an export says about the keys that it cannot hold."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardbeam.readers.export.images import Classes, ImageReader, Losses
from shardbeam.transforms.examples.decode.feature_map import FeatureMap
from shardbeam.transforms.examples.decode.picture import Picture
from tests.support.example_builders import write_png


def lost(keys: Sequence[str]) -> list[str]:
    """Returns the losses of a picture with some keys, in the order in which they are printed."""
    losses = Losses()
    reader = ImageReader(
        path="dataset",
        feature_map=FeatureMap(),
        classes=Classes({}, skeletons={}),
        losses=losses,
        keys=(),
    )
    picture = Picture(
        key="a.png",
        image=write_png(np.zeros((2, 3), np.uint8)),
        format="png",
        width=3,
        height=2,
        features={key: [1] for key in keys},
    )
    assert len(list(reader.read([picture]))) == 1
    return [what for what, _ in losses.counts.most_common()]


def test_lost_keys_are_named_in_one_order() -> None:
    assert lost(["b", "a", "c"]) == lost(["c", "b", "a"]) == [f"{key} (images)" for key in "abc"]
