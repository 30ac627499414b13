"""Compares the labels of a dataset with the predictions of a model."""
