"""From a record and its image to a serialized `tf.train.Example`."""
