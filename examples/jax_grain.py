"""A JAX classifier. Grain shuffles a split globally, reads it by threads, and makes batches."""

# /// script
# requires-python = ">=3.11"
# dependencies = ["jax==0.10.2", "grain==0.2.18", "optax==0.2.8"]
# ///

import sys
from functools import partial

import grain
import jax
import numpy as np
import optax
from PIL import Image

import shardbeam

PATH, SIDE, POOL = sys.argv[1], 48, (1, 2, 2, 1)
CONVOLVE = partial(jax.lax.conv_general_dilated, dimension_numbers=("NHWC", "HWIO", "NHWC"))


def examples(split):
    def to_arrays(pair):
        image = Image.fromarray(pair[0]).resize((SIDE, SIDE))
        return np.asarray(image, np.float32) / 255, np.int32(pair[1])

    pairs = shardbeam.open(PATH, split=split).classification()
    return grain.MapDataset.source(pairs).map(to_arrays)


def forward(weights, images):
    for kernel in weights["kernels"]:
        images = CONVOLVE(images, kernel, (1, 1), "SAME")
        images = jax.nn.relu(jax.nn.standardize(images, axis=(1, 2)))
        images = jax.lax.reduce_window(images, -np.inf, jax.lax.max, POOL, POOL, "VALID")
    return images.max(axis=(1, 2)) @ weights["dense"]


@jax.jit
def update(weights, state, images, labels):
    def loss(weights):
        logits = forward(weights, images)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    changes, state = optimizer.update(jax.grad(loss)(weights), state)
    return optax.apply_updates(weights, changes), state


draw = jax.nn.initializers.he_normal()
shapes = [(3, 3, 3, 16), (3, 3, 16, 32), (3, 3, 32, 64), (64, len(shardbeam.class_names(PATH)))]
*kernels, dense = map(draw, jax.random.split(jax.random.key(0), len(shapes)), shapes)
weights, optimizer = {"kernels": kernels, "dense": dense}, optax.adam(0.003)
state = optimizer.init(weights)
for images, labels in examples("train").seed(0).shuffle().repeat(15).batch(16).to_iter_dataset():
    weights, state = update(weights, state, images, labels)
images, labels = map(np.stack, zip(*examples("validation"), strict=True))
accuracy = (forward(weights, images).argmax(axis=-1) == labels).mean()
baseline = np.bincount(labels).max() / len(labels)
print(f"accuracy: {accuracy:.2f} (always the most frequent class: {baseline:.2f})")
