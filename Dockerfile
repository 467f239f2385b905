# The program with its HTTP service, on a CPU: docs/serving.md. .ci/wheel carries out the RUN lines in an empty
# environment, with the files that .dockerignore names, and builds the image where a Docker daemon answers.
FROM python:3.11-slim AS build
WORKDIR /build
COPY . source
RUN pip wheel --no-deps --wheel-dir wheels ./source

FROM python:3.11-slim
# Another index has other builds of torch, such as those for CUDA.
ARG PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
ARG PIP_NO_CACHE_DIR=1
WORKDIR /build
COPY constraints.txt .
RUN pip install -c constraints.txt torch
COPY --from=build /build/wheels wheels
RUN pip install -c constraints.txt "$(echo wheels/*.whl)[serve,onnx]"
# Users without an entry in /etc/passwd, as Kubernetes has them, work too: what libraries keep is in /tmp.
ENV HOME=/tmp
USER 1000:1000
WORKDIR /work
EXPOSE 8000
HEALTHCHECK --start-period=60s CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health', timeout=5)"]
ENTRYPOINT ["mtl"]
CMD ["serve", "/model", "--host=0.0.0.0", "--port=8000"]
