"""Maps of classes and segments: one image that annotates another, pixel by pixel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from transforms.examples.boxes import AnnotatedFrame
from transforms.images.check import StoredImage
from transforms.labels import LabelMap
from transforms.records import ImageAnnotations, MaskRole


def semantic_features(
    annotations: ImageAnnotations,
    *,
    frame: AnnotatedFrame,
    image: StoredImage,
    masks: Mapping[MaskRole, bytes],
    label_map: LabelMap,
    corrections: Counter[str],
) -> dict[str, list[Any]]:
    """Renders a map of classes: `{default key: values}`."""
    raise NotImplementedError


def panoptic_features(
    annotations: ImageAnnotations,
    *,
    frame: AnnotatedFrame,
    image: StoredImage,
    masks: Mapping[MaskRole, bytes],
    label_map: LabelMap,
    corrections: Counter[str],
) -> dict[str, list[Any]]:
    """Renders a map of segments: `{default key: values}`."""
    raise NotImplementedError
