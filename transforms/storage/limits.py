"""The most that a file of each purpose holds; docs/limits.md says the same."""

from __future__ import annotations

# manifest.json and the other JSON files of a dataset: 300 bytes a shard.
METADATA_BYTES = 128 << 20
# An index: 100 bytes a row.
INDEX_BYTES = 1 << 30
INDEX_ROWS = 5_000_000
# A file of rejects has 100,000.
REJECTS_BYTES = 512 << 20
# duplicates.parquet, and the files that `exclude` and `group_by` name: images in them.
KEY_FILE_BYTES = 256 << 20
KEY_FILE_ROWS = 2_000_000
# Lists of a dataset's images, classes or columns beside its annotations.
LIST_BYTES = 256 << 20
# An annotation file that is read whole, and one that is about a single image.
ANNOTATION_BYTES = 8 << 30
IMAGE_ANNOTATION_BYTES = 256 << 20
# A protobuf message.
RECORD_BYTES = (2 << 30) - 1
