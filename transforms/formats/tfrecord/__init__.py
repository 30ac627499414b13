"""TFRecord files of any program."""
