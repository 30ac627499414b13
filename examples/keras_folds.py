"""Predicts each picture of a split with a classifier that has not seen it, for a report.

The dataset is cut into folds. The model of keras_classifier.py is trained on all but one of them,
and predicts that one. `shardbeam report PATH --predictions TABLE` then shows the labels that the
models disagree with.
"""

# /// script
# requires-python = ">=3.10"
# dependencies = ["tensorflow==2.21.0"]
# ///

import csv
import sys

import keras
import numpy as np
from keras_classifier import PATH, Batches, train

import shardbeam

TABLE, SPLIT, FOLDS = sys.argv[2], "train", 3

examples = shardbeam.open(PATH, split=SPLIT)
names = shardbeam.class_names(PATH)
fold = np.random.default_rng(0).permutation(len(examples)) % FOLDS
probabilities = np.zeros((len(examples), len(names)))
for number in range(FOLDS):
    unseen = np.flatnonzero(fold == number)
    model = train(Batches(SPLIT, np.flatnonzero(fold != number), workers=2))
    logits = model.predict(Batches(SPLIT, unseen.copy()), verbose=0)
    probabilities[unseen] = keras.ops.convert_to_numpy(keras.ops.softmax(logits))

with open(TABLE, "w", newline="", encoding="utf-8") as file:
    table = csv.writer(file)
    table.writerow(["key", *names.values()])
    for example, row in zip(examples, probabilities, strict=True):
        table.writerow([example["image/filename"].decode(), *row.tolist()])

labels = np.array([label for _, label in examples.classification()])
accuracy = np.mean(probabilities.argmax(axis=1) == labels)
baseline = np.bincount(labels).max() / len(labels)
print(f"accuracy: {accuracy:.2f} (always the most frequent class: {baseline:.2f})")
