"""datumaro opens the COCO files that `shardbeam export --format coco` has written."""

# /// script
# requires-python = ">=3.10"
# dependencies = ["datumaro==1.13.12"]
# ///

import sys
from collections import Counter

import datumaro

import shardbeam

PATH, EXPORTED = sys.argv[1:]

names = shardbeam.class_names(PATH)
written = Counter(
    names[label]
    for _, target in shardbeam.open(PATH, split="train").detection()
    for label in target["labels"].tolist()
)

imported = datumaro.Dataset.import_from(EXPORTED, "coco_instances")
labels = imported.categories()[datumaro.AnnotationType.label]
found = Counter(labels[each.label].name for item in imported for each in item.annotations)

assert found == written
print(f"read: {len(imported)} images, objects by class {[found[each] for each in names.values()]}")
