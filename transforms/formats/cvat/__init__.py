"""CVAT for images."""
