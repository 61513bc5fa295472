# A worked example: an image that serves SGLang with our wheels, which are never a layer of it and need no network.
#
#   smwheel image --arch 120 --tag smwheel-wheels:120 && docker load --input wheels-image.tar
#   docker build -f docker/serving.Dockerfile --target environment -t serving-environment .          (needs BuildKit)
#   docker build -f docker/serving.Dockerfile --network none --build-arg ENVIRONMENT=serving-environment \
#       --build-arg WHEELS=smwheel-wheels:120 -t serving .
#   docker run --gpus all --shm-size 16g -p 30000:30000 -v MODELS:/models:ro serving --model-path /models/NAME
#
# Two calls, so that the second can be made with no network at all. (One call without ENVIRONMENT does both, with one.)
#
# SGLang 0.5.23 still compiles kernels of its own when it serves (about 200 families for sm_120 at most, with nvcc, ninja
# and g++; without them its scheduler dies after the weights are loaded), and Triton wants a C compiler. So the image
# carries them. COMPILERS=0 leaves them out, for those whose wheels hold all that is asked for: build the recipe
# sglang-jit from what `smwheel record` saw, and prove it with `smwheel smoke nojit`. What is compiled at start and what
# is not, by name: docs/containers.md.
ARG BASE_IMAGE=docker.io/library/python:3.12-slim-bookworm
ARG WHEELS=smwheel-wheels:latest
ARG ENVIRONMENT=environment

FROM ${WHEELS} AS wheels

FROM ${BASE_IMAGE} AS environment
ARG PACKAGES="sglang==0.5.23"
# What the wheels image brings: the published wheels of these (1.8 GB installed) are not to stay in a layer.
ARG OURS="sglang-kernel sgl-kernel flashinfer-python flashinfer-jit-cache"
ARG COMPILERS=1
ENV PATH=/opt/serving/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
RUN --mount=type=bind,source=docker,target=/context \
    --mount=type=secret,id=ca --mount=type=secret,id=pip \
    /context/install-serving

FROM ${ENVIRONMENT}
# Ours, in the place of what the index brought.
# PARTIAL=1 lets packages pass whose import asks for a module that PACKAGES did not bring; they are named.
ARG PARTIAL=0
RUN --mount=type=bind,source=docker,target=/context --mount=type=bind,from=wheels,target=/wheels \
    pip install --no-cache-dir --no-index --no-deps --find-links /wheels --require-hashes -r /wheels/requirements.txt \
 && python /context/check-imports /wheels/requirements.txt

# What compiles at serve time finds its toolkit here, and keeps what it made in a directory that a volume can hold.
ENV CUDA_HOME=/opt/serving/cuda SGLANG_JIT_CACHE_DIR=/cache/sglang TRITON_CACHE_DIR=/cache/triton \
    XDG_CACHE_HOME=/cache HOME=/cache
RUN mkdir /cache && chown 10001:10001 /cache
USER 10001:10001
EXPOSE 30000
HEALTHCHECK --interval=30s --start-period=30m --timeout=5s \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:30000/health', timeout=4)"]
ENTRYPOINT ["python", "-m", "sglang.launch_server", "--host", "0.0.0.0", "--port", "30000"]
