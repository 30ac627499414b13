"""Boxes, masks and polygons."""
