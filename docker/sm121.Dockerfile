# Builder of wheels for sm_121: GB10 (DGX Spark).
#   docker build -f docker/sm121.Dockerfile --build-arg BASE_IMAGE=… -t smwheel-sm121 .     (needs BuildKit)
#   docker run --rm -v "$PWD/wheelhouse:/wheelhouse" smwheel-sm121
# GB10 is an aarch64 machine: the image is built there. CUDA 13.0 from the package registry. Not run here.
ARG BASE_IMAGE=quay.io/pypa/manylinux_2_28_aarch64
FROM ${BASE_IMAGE}
RUN --mount=type=bind,source=docker,target=/context/docker --mount=type=bind,source=ci,target=/context/ci \
    --mount=type=bind,source=recipes,target=/context/recipes \
    --mount=type=secret,id=ca --mount=type=secret,id=pip \
    /context/docker/install-builder
COPY src /opt/smwheel/src
COPY recipes /opt/smwheel/recipes
COPY patches /opt/smwheel/patches
CMD ["smwheel", "build", "--arch", "121", "--work", "/tmp/work", "--wheelhouse", "/wheelhouse"]
