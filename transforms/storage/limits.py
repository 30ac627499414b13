"""Size limits for files by their purpose; docs/reference/limits.md lists them, too."""

from __future__ import annotations

# manifest.json and the other JSON files of a dataset, which take 300 bytes for each shard.
METADATA_BYTES = 128 << 20
# A shard's index, which takes 100 bytes for each row.
INDEX_BYTES = 1 << 30
INDEX_ROWS = 5_000_000
# A file of rejects, which holds about 100,000 rejects.
REJECTS_BYTES = 512 << 20
# duplicates.parquet, and the files of images that `exclude` and `group_by` name.
KEY_FILE_BYTES = 256 << 20
KEY_FILE_ROWS = 2_000_000
# Lists of images, classes or columns that come with annotations.
LIST_BYTES = 256 << 20
# An annotation file that one worker reads, and an annotation file of a single image.
ANNOTATION_BYTES = 8 << 30
IMAGE_ANNOTATION_BYTES = 256 << 20
# A longer COCO or LVIS file stays on disk while it is read.
WHOLE_ANNOTATION_BYTES = 512 << 20
# The content of a gzip file that is read from the middle; the largest published set of digits has
# half of this.
GZIP_BYTES = 1 << 30
# A protobuf message, such as an Example.
RECORD_BYTES = (2 << 30) - 1
