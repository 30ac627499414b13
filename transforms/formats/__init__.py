"""Dataset formats: one Beam-free module each."""
