"""The files of a dataset directory, and how they come to be there."""
