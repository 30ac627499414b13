"""VIA, the VGG Image Annotator."""
