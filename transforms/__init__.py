"""Beam transforms of Shardbeam, and the Beam-free modules under them.

Stage modules (`list_images`, `read_annotations`, `join_annotations`, `assign_split`,
`write_to_tfrecord`, `commit_dataset`) hold the PTransforms. Everything else here imports no
Beam. This file imports nothing, so that a Beam-free module never pays for Beam's import.
"""
