"""A Keras classifier. Keras asks for batches by number, and shardbeam.open reads any Example."""

# /// script
# requires-python = ">=3.10"
# dependencies = ["tensorflow==2.21.0"]
# ///

import sys

import keras
import numpy as np
from PIL import Image

import shardbeam

PATH, SIDE, BATCH = sys.argv[1], 48, 16


class Batches(keras.utils.PyDataset):
    """Batches of a split, or of some of its Examples, in a new order after each epoch."""

    def __init__(self, split, numbers=None, **options):
        super().__init__(**options)
        self.pairs = shardbeam.open(PATH, split=split).classification()
        self.order = np.arange(len(self.pairs)) if numbers is None else numbers
        self.random = np.random.default_rng(0)

    def __len__(self):
        return -(-len(self.order) // BATCH)

    def __getitem__(self, index):
        images, labels = zip(*self.pairs[self.order[index * BATCH :][:BATCH]], strict=True)
        resized = [np.asarray(Image.fromarray(image).resize((SIDE, SIDE))) for image in images]
        return np.stack(resized) / 255, np.array(labels)

    def on_epoch_end(self):
        self.random.shuffle(self.order)


def train(batches):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Input((SIDE, SIDE, 3))])
    for filters in (16, 32, 64):
        model.add(keras.layers.Conv2D(filters, 3, padding="same"))
        model.add(keras.layers.BatchNormalization(momentum=0.9))
        model.add(keras.layers.ReLU())
        model.add(keras.layers.MaxPooling2D())
    model.add(keras.layers.GlobalMaxPooling2D())
    model.add(keras.layers.Dense(len(shardbeam.class_names(PATH))))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.Adam(0.003), loss=loss, metrics=["accuracy"])
    model.fit(batches, epochs=15, verbose=2)
    return model


if __name__ == "__main__":
    validation = Batches("validation")
    _, accuracy = train(Batches("train", workers=2)).evaluate(validation, verbose=0)
    baseline = np.bincount([label for _, label in validation.pairs]).max() / len(validation.pairs)
    print(f"accuracy: {accuracy:.2f} (always the most frequent class: {baseline:.2f})")
