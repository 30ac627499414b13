"""WebDataset."""
