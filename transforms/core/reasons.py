"""Stable codes for inputs that are rejected, excluded or corrected.

Files of rejects, manifests and summaries hold these codes, so a code never changes its meaning.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping


class Reason(str, enum.Enum):
    """Why an input was rejected."""

    # listing and joining
    UNREADABLE_NAME = "unreadable_name"
    MISSING_IMAGE = "missing_image"
    UNKNOWN_IMAGE_ID = "unknown_image_id"
    DUPLICATE_IMAGE_ID = "duplicate_image_id"
    DUPLICATE_KEY = "duplicate_key"
    AMBIGUOUS_STEM = "ambiguous_stem"
    NO_CLASS_FOLDER = "no_class_folder"
    GROUP_NOT_MATCHED = "group_not_matched"
    UNANNOTATED = "unannotated"
    OBJECTS_LOST = "objects_lost"
    # reading the annotations of one image
    ANNOTATION_MALFORMED = "annotation_malformed"
    OUTSIDE_ROOTS = "outside_roots"
    NAME_NOT_MATCHED = "name_not_matched"
    UNKNOWN_SPLIT = "unknown_split"
    # reading and checking the image
    IMAGE_UNREADABLE = "image_unreadable"
    CHANGED_SINCE_LISTING = "changed_since_listing"
    ZERO_BYTE = "zero_byte"
    NOT_AN_IMAGE = "not_an_image"
    WRONG_EXTENSION = "wrong_extension"
    TRUNCATED = "truncated"
    CORRUPT = "corrupt"
    JPEG_DAMAGED = "jpeg_damaged"
    UNSUPPORTED_IMAGE = "unsupported_image"
    DECOMPRESSION_BOMB = "decompression_bomb"
    DECODE_BOMB = "decode_bomb"
    FILE_TOO_LARGE = "file_too_large"
    # joining image and annotations
    SIZE_MISMATCH = "size_mismatch"
    # reading the masks that annotate an image
    MASK_UNREADABLE = "mask_unreadable"
    MASK_MISMATCH = "mask_mismatch"
    MASK_VALUE_UNKNOWN = "mask_value_unknown"
    TOO_MANY_SEGMENTS = "too_many_segments"


# Reasons that may go away although the file stays the same: a share was not mounted, or a
# permission was missing.
PASSING_REASONS = frozenset(
    {Reason.IMAGE_UNREADABLE, Reason.MASK_UNREADABLE, Reason.CHANGED_SINCE_LISTING}
)


# Reasons for which a few images of a small dataset may be rejected without a word in the config
# (`commit.allowance`), by kind: reading the picture's bytes shows them, or its objects are lost.
ALLOWED_REASONS: Mapping[str, frozenset[Reason]] = {
    "damaged pictures": frozenset(
        {
            Reason.ZERO_BYTE,
            Reason.NOT_AN_IMAGE,
            Reason.TRUNCATED,
            Reason.CORRUPT,
            Reason.JPEG_DAMAGED,
        }
    ),
    "images that lost their objects": frozenset({Reason.OBJECTS_LOST}),
}
# The most images of each kind.
ALLOWED_OF_A_KIND = 3


class Exclusion(str, enum.Enum):
    """The rule that left out a listed input."""

    HIDDEN_FILE = "hidden_file"
    NOT_AN_IMAGE_NAME = "not_an_image_name"
    NOT_AN_ANNOTATION = "not_an_annotation"
    UNANNOTATED = "unannotated"
    OBJECTS_LOST = "objects_lost"
    CLASS_NOT_LISTED = "class_not_listed"
    LABEL_EXCLUDED = "label_excluded"
    IN_NO_SPLIT = "in_no_split"
    DISCARDED = "discarded"
    NO_OBJECTS = "no_objects"
    EXCLUDED_BY_FILE = "excluded_by_file"
    ANNOTATION_FOLDER = "annotation_folder"
    OUTSIDE_IMAGE_FOLDER = "outside_image_folder"
    BEYOND_LIMIT = "beyond_limit"
    LINKED_FOLDER = "linked_folder"


class Correction(str, enum.Enum):
    """A change to an example that was written, or a part of it that was left out."""

    BOX_CLIPPED = "box_clipped"
    BOX_CLIPPED_SLIGHTLY = "box_clipped_slightly"
    BOX_CORNERS_EXCHANGED = "box_corners_exchanged"
    BOX_WITHOUT_AREA_DROPPED = "box_without_area_dropped"
    BOX_FROM_POLYGONS = "box_from_polygons"
    BOX_FROM_MASK = "box_from_mask"
    BOX_FROM_KEYPOINTS = "box_from_keypoints"
    BOX_TURNED = "box_turned"
    OBJECT_WITHOUT_BOX_DROPPED = "object_without_box_dropped"
    OBJECT_OF_UNKNOWN_CATEGORY_DROPPED = "object_of_unknown_category_dropped"
    LABEL_OF_UNKNOWN_CATEGORY_DROPPED = "label_of_unknown_category_dropped"
    KEYPOINTS_MALFORMED_DROPPED = "keypoints_malformed_dropped"
    KEYPOINT_IN_NO_OBJECT_DROPPED = "keypoint_in_no_object_dropped"
    KEYPOINT_IN_SEVERAL_OBJECTS_DROPPED = "keypoint_in_several_objects_dropped"
    KEYPOINT_REPEATED_DROPPED = "keypoint_repeated_dropped"
    OBJECT_OF_SEVERAL_CLASSES_REPEATED = "object_of_several_classes_repeated"
    OBJECT_OF_EXCLUDED_LABEL_DROPPED = "object_of_excluded_label_dropped"
    OBJECT_OF_BACKGROUND_DROPPED = "object_of_background_dropped"
    SMALL_OBJECT_DROPPED = "small_object_dropped"
    OBJECT_OUTSIDE_CROP_DROPPED = "object_outside_crop_dropped"
    BOX_CUT_BY_CROP = "box_cut_by_crop"
    DELETED_OBJECT_DROPPED = "deleted_object_dropped"
    EXCLUDED_LABEL_DROPPED = "excluded_label_dropped"
    DUPLICATE_ANNOTATION_DROPPED = "duplicate_annotation_dropped"
    ENTRIES_MERGED = "entries_merged"
    CONFIDENCE_DROPPED = "confidence_dropped"
    LONE_SURROGATE_REPLACED = "lone_surrogate_replaced"
    KEY_NOT_CARRIED_OVER = "key_not_carried_over"
    SIZE_CORRECTED = "size_corrected"
    ANNOTATED_SIZE_SCALED = "annotated_size_scaled"
    ORIENTATION_APPLIED = "orientation_applied"
    IMAGE_CONVERTED = "image_converted"
    IMAGE_RESIZED = "image_resized"
    FIRST_FRAME_KEPT = "first_frame_kept"
    JPEG_DAMAGE_KEPT = "jpeg_damage_kept"
    JPEG_JUNK_KEPT = "jpeg_junk_kept"
    WRONG_EXTENSION_KEPT = "wrong_extension_kept"
    # masks of objects
    POLYGON_UNUSABLE_DROPPED = "polygon_unusable_dropped"
    RLE_SIZE_CORRECTED = "rle_size_corrected"
    RLE_COUNTS_CORRECTED = "rle_counts_corrected"
    RLE_SIDES_EXCHANGED = "rle_sides_exchanged"
    RLE_BY_ROWS = "rle_by_rows"
    MASK_EMPTY_NO_SEGMENTATION = "mask_empty_no_segmentation"
    MASK_EMPTY_BAD_SEGMENTATION = "mask_empty_bad_segmentation"
    MASK_MATCHED_BY_BOX = "mask_matched_by_box"
    # maps of classes and segments
    MAP_MISSING_LEFT_VOID = "map_missing_left_void"
    MASKS_JOINED = "masks_joined"
    REGION_OF_EXCLUDED_LABEL_VOID = "region_of_excluded_label_void"
    REGION_OF_UNKNOWN_CLASS_VOID = "region_of_unknown_class_void"
    REGION_OF_UNKNOWN_SEGMENT_VOID = "region_of_unknown_segment_void"
    REGION_UNUSABLE_DROPPED = "region_unusable_dropped"
    SEGMENT_WITHOUT_PIXELS = "segment_without_pixels"
    SEGMENT_OUTSIDE_CROP_DROPPED = "segment_outside_crop_dropped"
    DUPLICATE_SEGMENT_DROPPED = "duplicate_segment_dropped"


# {words in a correction's code: what the correction counts}; all others count images.
_UNITS = {
    frozenset(
        {"box", "object", "polygon", "rle", "mask", "annotation", "keypoints", "keypoint"}
    ): "objects",
    frozenset({"label", "confidence"}): "labels",
    frozenset({"region", "segment"}): "segments",
    frozenset({"surrogate"}): "texts",
}


def correction_unit(code: str) -> str:
    """Returns what a correction counts, in the plural: one image may have several clipped boxes."""
    words = set(code.split("_"))
    return next((unit for marks, unit in _UNITS.items() if marks & words), "images")


# Corrections that leave an annotated object out because it cannot be read as one.
LOST_OBJECTS = frozenset(
    {
        Correction.BOX_WITHOUT_AREA_DROPPED,
        Correction.OBJECT_WITHOUT_BOX_DROPPED,
        Correction.OBJECT_OF_UNKNOWN_CATEGORY_DROPPED,
        # Its object may be one that nobody has drawn.
        Correction.KEYPOINT_IN_NO_OBJECT_DROPPED,
    }
)
# The same for labels of an image.
LOST_LABELS = frozenset({Correction.LABEL_OF_UNKNOWN_CATEGORY_DROPPED})
# Corrections that leave an annotated object out for any reason, also because the config does.
DROPPED_OBJECTS = LOST_OBJECTS | {
    Correction.OBJECT_OF_EXCLUDED_LABEL_DROPPED,
    Correction.OBJECT_OF_BACKGROUND_DROPPED,
    Correction.SMALL_OBJECT_DROPPED,
    Correction.OBJECT_OUTSIDE_CROP_DROPPED,
}
