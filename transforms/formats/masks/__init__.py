"""Images and masks of classes."""
