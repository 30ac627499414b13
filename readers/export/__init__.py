"""Writes the images and annotations of a dataset as files again: COCO, YOLO."""
