"""Writes a dataset's images and annotations as files again: COCO, YOLO. Beam-free."""
