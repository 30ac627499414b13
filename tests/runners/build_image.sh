#!/bin/sh
# Builds the image of the Dockerfile with buildah, without an engine and without a registry of
# images: stand-ins for its three base images are made of Debian's packages and Beam's own boot.
#
#     tests/runners/build_image.sh TOOLS NAME
#
# TOOLS is the folder of `make runner-tools`; all images are kept there. Needs root.
set -eu
tools=$(realpath "$1")
name=$2
export STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot

# With a storage of its own: what else is on the machine is none of its business.
buildah() {
    command buildah --root "$tools/containers" --runroot "$tools/containers/run" "$@"
}

# Adds a folder to an empty image, and names it.
image_of() {
    container=$(buildah from scratch)
    buildah add --quiet "$container" "$1" / >/dev/null
    buildah commit --quiet --rm "$container" "$2" >/dev/null
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if ! buildah inspect --type image shardbeam-base >/dev/null 2>&1; then
    rm -rf "$tools/debian"
    # Quiet: what goes wrong is in its own log.
    debootstrap --variant=minbase --include=ca-certificates,python3,python3-pip,python3-venv \
        bookworm "$tools/debian" >"$tools/debootstrap.log" 2>&1 \
        || { tail "$tools/debian/debootstrap/debootstrap.log" "$tools/debootstrap.log"; exit 1; }
    # As in Python's own images: pip installs for everybody, and there is a `python`.
    rm -f "$tools"/debian/usr/lib/python3*/EXTERNALLY-MANAGED
    ln -sf python3 "$tools/debian/usr/bin/python"
    image_of "$tools/debian" shardbeam-base
    rm -rf "$tools/debian"
fi
python=$(buildah run "$(buildah from shardbeam-base)" \
    python -c 'import sys; print("%d.%d" % sys.version_info[:2])')
buildah rm --all >/dev/null

mkdir -p "$work/sdk/opt/apache/beam" "$work/launcher/opt/google/dataflow"
cp "$tools/bin/beam-boot" "$work/sdk/opt/apache/beam/boot"
image_of "$work/sdk" shardbeam-sdk
# All that is known of Google's launcher: it starts the file that the environment names.
printf '#!/bin/sh\nexec python "$FLEX_TEMPLATE_PYTHON_PY_FILE" "$@"\n' \
    >"$work/launcher/opt/google/dataflow/python_template_launcher"
chmod +x "$work/launcher/opt/google/dataflow/python_template_launcher"
image_of "$work/launcher" shardbeam-launcher

buildah bud --quiet --layers --tag "$name" \
    --volume /etc/ssl/certs:/etc/ssl/certs:ro \
    --ignorefile .dockerignore \
    --build-arg PYTHON_VERSION="$python" \
    --build-arg SDK_IMAGE=shardbeam-sdk \
    --build-arg LAUNCHER_IMAGE=shardbeam-launcher \
    --build-arg PYTHON_IMAGE=shardbeam-base \
    --build-arg STORAGE_PACKAGES="s3fs adlfs" \
    .
