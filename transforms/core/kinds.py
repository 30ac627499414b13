"""The groups of Example keys that a format can fill."""

from __future__ import annotations

import enum
from collections.abc import Mapping


class Kind(str, enum.Enum):
    """A group of Example keys that a format fills.

    Attributes:
        CLASSIFICATION: Labels of the image.
        LABEL_CONFIDENCE: A confidence for each label of the image.
        DETECTION: Objects with boxes and labels.
        INSTANCE_MASKS: A mask for each object.
        KEYPOINTS: Keypoints of each object.
        CAPTIONS: Texts that describe the image.
        SEMANTIC: A map of classes.
        PANOPTIC: A map of segments.
        ROWS: Rows of a table without images; no other kind goes with it.
    """

    CLASSIFICATION = "classification"
    LABEL_CONFIDENCE = "label_confidence"
    DETECTION = "detection"
    INSTANCE_MASKS = "instance_masks"
    KEYPOINTS = "keypoints"
    CAPTIONS = "captions"
    SEMANTIC = "semantic"
    PANOPTIC = "panoptic"
    ROWS = "rows"


def present_kinds(found: Mapping[Kind, object]) -> frozenset[Kind]:
    """Returns the kinds whose value is true."""
    return frozenset(kind for kind, is_present in found.items() if is_present)
