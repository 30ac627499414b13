"""YOLO."""
