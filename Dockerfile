# The command in a container: docker build -t shardbeam . && docker run shardbeam --help
ARG PYTHON_IMAGE=python:3.12-slim
FROM ${PYTHON_IMAGE}

# Dependencies first: this layer is made anew only when the lock file changes. Workers need no
# TensorFlow, so the lock file without it is used.
COPY requirements-worker.lock /opt/shardbeam/
RUN pip install --no-cache-dir --require-hashes -r /opt/shardbeam/requirements-worker.lock

# The package itself; --no-deps, because every dependency is locked above, and pip check proves it.
COPY . /opt/shardbeam
RUN pip install --no-cache-dir --no-deps --no-build-isolation /opt/shardbeam && pip check

# Nothing here needs to be root.
RUN useradd --create-home shardbeam
USER shardbeam
WORKDIR /home/shardbeam

ENTRYPOINT ["shardbeam"]
