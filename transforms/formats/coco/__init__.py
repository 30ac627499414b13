"""COCO and LVIS."""
