# Builder of wheels for sm_90: H100, H200.
#   docker build -f docker/sm90.Dockerfile --build-arg BASE_IMAGE=… -t smwheel-sm90 .     (needs BuildKit)
#   docker run --rm -v "$PWD/wheelhouse:/wheelhouse" smwheel-sm90
# CUDA 13.0 comes from the package registry; for CUDA 12.8 name a CUDA base image (…-devel).
ARG BASE_IMAGE=quay.io/pypa/manylinux_2_28_x86_64
FROM ${BASE_IMAGE}
RUN --mount=type=bind,source=docker,target=/context/docker --mount=type=bind,source=ci,target=/context/ci \
    --mount=type=bind,source=recipes,target=/context/recipes \
    --mount=type=secret,id=ca --mount=type=secret,id=pip \
    /context/docker/install-builder
COPY src /opt/smwheel/src
COPY recipes /opt/smwheel/recipes
COPY patches /opt/smwheel/patches
CMD ["smwheel", "build", "--arch", "90", "--work", "/tmp/work", "--wheelhouse", "/wheelhouse"]
