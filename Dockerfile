# One image for three: workers of Dataflow and Flink, the launcher of the Flex Template, and the
# command. docker build -t shardbeam . && docker run shardbeam shardbeam --help
#
# Whatever submits a job must have the same minor version of Python and the same Beam.
ARG PYTHON_VERSION=3.12
ARG BEAM_VERSION=2.77.0
ARG SDK_IMAGE=apache/beam_python${PYTHON_VERSION}_sdk:${BEAM_VERSION}
ARG LAUNCHER_IMAGE=gcr.io/dataflow-templates-base/python312-template-launcher-base:latest
ARG PYTHON_IMAGE=python:${PYTHON_VERSION}-slim

# Of these two only one program each is wanted, not their hundreds of megabytes of packages.
FROM ${SDK_IMAGE} AS sdk
FROM ${LAUNCHER_IMAGE} AS launcher

FROM ${PYTHON_IMAGE}
# Arguments from before the first FROM are not known after it unless named again.
ARG PYTHON_VERSION
ARG BEAM_VERSION

# Beam's boot, which a runner starts a worker by, and the program that a template is launched by.
COPY --from=sdk /opt/apache/beam/boot /opt/apache/beam/boot
COPY --from=launcher /opt/google/dataflow/python_template_launcher /opt/google/dataflow/

# Dependencies first: this layer is made anew only when the lock file changes. Workers need no
# TensorFlow, so the lock file without it is used.
COPY requirements-worker.lock /opt/shardbeam/
RUN pip install --no-cache-dir --require-hashes -r /opt/shardbeam/requirements-worker.lock

# The package itself; --no-deps, because every dependency is locked above, and pip check proves it.
COPY . /opt/shardbeam/source
RUN pip install --no-cache-dir --no-deps --no-build-isolation /opt/shardbeam/source \
    && pip check \
    && mv /opt/shardbeam/source/docker/entrypoint.sh /opt/shardbeam/source/docker/launcher.py \
        /opt/shardbeam/ \
    && rm -r /opt/shardbeam/source

# Whoever submits a job needs the same versions: for people to read, and compared with the truth.
LABEL shardbeam.python=${PYTHON_VERSION} shardbeam.beam=${BEAM_VERSION}
RUN python -c "from shardbeam.pipelines.runners import own_versions; \
    assert own_versions() == ('${PYTHON_VERSION}', '${BEAM_VERSION}'), own_versions()"

# All that workers need is installed: without this, boot would make an environment for each worker.
ENV RUN_PYTHON_SDK_IN_DEFAULT_ENVIRONMENT=1
ENV FLEX_TEMPLATE_PYTHON_PY_FILE=/opt/shardbeam/launcher.py

# No USER: Dataflow mounts folders that only root may write to. `docker run --user` works.
WORKDIR /data
ENTRYPOINT ["/opt/shardbeam/entrypoint.sh"]
