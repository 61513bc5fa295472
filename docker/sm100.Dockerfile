# Builder of wheels for sm_100: B200, GB200.
#   docker build -f docker/sm100.Dockerfile --build-arg BASE_IMAGE=… -t smwheel-sm100 .     (needs BuildKit)
#   docker run --rm -v "$PWD/wheelhouse:/wheelhouse" smwheel-sm100
# CUDA 13.0 comes from the package registry, or a CUDA base image brings its own.
ARG BASE_IMAGE=quay.io/pypa/manylinux_2_28_x86_64
FROM ${BASE_IMAGE}
RUN --mount=type=bind,source=docker,target=/context/docker --mount=type=bind,source=ci,target=/context/ci \
    --mount=type=bind,source=recipes,target=/context/recipes \
    --mount=type=secret,id=ca --mount=type=secret,id=pip \
    /context/docker/install-builder
COPY src /opt/smwheel/src
COPY recipes /opt/smwheel/recipes
COPY patches /opt/smwheel/patches
CMD ["smwheel", "build", "--arch", "100", "--work", "/tmp/work", "--wheelhouse", "/wheelhouse"]
