# One image serves as worker of Dataflow and Flink, as launcher of the Flex Template, and as the
# command: docker build -t shardbeam . && docker run shardbeam shardbeam --help
#
# The program that submits a job needs the same minor version of Python and the same Beam.
ARG PYTHON_VERSION=3.12
ARG BEAM_VERSION=2.77.0
ARG SDK_IMAGE=apache/beam_python${PYTHON_VERSION}_sdk:${BEAM_VERSION}
ARG LAUNCHER_TAG=flex_templates_base_image_release_20260112_RC00
ARG LAUNCHER_IMAGE=gcr.io/dataflow-templates-base/python312-template-launcher-base:${LAUNCHER_TAG}
ARG PYTHON_IMAGE=python:${PYTHON_VERSION}-slim

# Only one program of each is copied, not their hundreds of megabytes of packages.
FROM ${SDK_IMAGE} AS sdk
FROM ${LAUNCHER_IMAGE} AS launcher

FROM ${PYTHON_IMAGE}
# Docker forgets arguments from before the first FROM unless they are named again.
ARG PYTHON_VERSION
ARG BEAM_VERSION
# "s3fs" for s3://, "adlfs" for abfs://, or both.
ARG STORAGE_PACKAGES=

# Beam's boot, with which runners start workers, and the program that launches a template.
COPY --from=sdk /opt/apache/beam/boot /opt/apache/beam/boot
COPY --from=launcher /opt/google/dataflow/python_template_launcher /opt/google/dataflow/

# Dependencies come first, so that this layer is only rebuilt when the lock file changes. Workers
# need no TensorFlow, so this lock file has none. It names all dependencies: pip need not look for
# them, and would find newer versions than the locked ones. setuptools comes first:
# google-apitools is built from source, and in isolation pip would build it with an unlocked one.
COPY requirements-worker.lock requirements-s3fs.lock requirements-adlfs.lock /opt/shardbeam/
RUN cd /opt/shardbeam \
    && sed -n '/^setuptools==/,/[^\\]$/p' requirements-worker.lock >requirements-setuptools.lock \
    && for name in setuptools worker ${STORAGE_PACKAGES}; do \
        pip install --no-cache-dir --no-deps --no-build-isolation --require-hashes \
            -r requirements-${name}.lock || exit 1; \
    done \
    && rm requirements-setuptools.lock

# The package itself, without dependencies: they are all locked above, and pip check proves it.
COPY . /opt/shardbeam/source
RUN pip install --no-cache-dir --no-deps --no-build-isolation /opt/shardbeam/source \
    && pip check \
    && mv /opt/shardbeam/source/docker/entrypoint.sh /opt/shardbeam/source/docker/launcher.py \
        /opt/shardbeam/ \
    && rm -r /opt/shardbeam/source

# The versions that submitters need, for people to read; the next step checks them.
LABEL shardbeam.python=${PYTHON_VERSION} shardbeam.beam=${BEAM_VERSION}
RUN python -c "from shardbeam.pipelines.runners.options import own_versions; \
    assert own_versions() == ('${PYTHON_VERSION}', '${BEAM_VERSION}'), own_versions()"

# Workers use what is installed here; otherwise boot would create an environment for each of them.
ENV RUN_PYTHON_SDK_IN_DEFAULT_ENVIRONMENT=1
ENV FLEX_TEMPLATE_PYTHON_PY_FILE=/opt/shardbeam/launcher.py

# There is no USER, because only root may write to the folders that Dataflow mounts. `docker run
# --user` works.
WORKDIR /data
ENTRYPOINT ["/opt/shardbeam/entrypoint.sh"]
