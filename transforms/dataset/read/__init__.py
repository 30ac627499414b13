"""Reading back: datasets of ours, of TFDS, and TFRecord files of anyone's. Beam-free."""
