# The CPU engine: docker build -f deploy/docker/engine.Dockerfile -t kvroute-engine .
# With --build-arg WITH_TORCH=1 it also knows --compute torch (a small real model); the image is some 700 MB larger then.

FROM python:3.13.5-slim-bookworm AS build
ARG WITH_TORCH=0
ARG TORCH_VERSION=2.13.0
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
WORKDIR /src
RUN python -m venv /opt/kvroute
COPY pyproject.toml requirements.lock CMakeLists.txt README.md LICENSE ./
COPY app app
COPY router router
COPY index index
COPY engine engine
COPY store store
# Without the router's native core, which the engine has no use for.
RUN /opt/kvroute/bin/pip install --no-cache-dir --constraint requirements.lock scikit-build-core \
 && KVROUTE_PURE=1 /opt/kvroute/bin/pip install --no-cache-dir --no-build-isolation --constraint requirements.lock . \
 && if [ "$WITH_TORCH" = 1 ]; then \
        /opt/kvroute/bin/pip install --no-cache-dir --constraint requirements.lock \
            --extra-index-url "$TORCH_INDEX" "torch==$TORCH_VERSION"; \
    fi \
 && /opt/kvroute/bin/pip uninstall --yes scikit-build-core pip

FROM python:3.13.5-slim-bookworm
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
RUN useradd --system --uid 10001 --no-create-home kvroute
COPY --from=build /opt/kvroute /opt/kvroute
WORKDIR /opt/engine
COPY deploy/__init__.py deploy/__init__.py
COPY deploy/engine deploy/engine
USER 10001:10001
EXPOSE 8000 5557 5657
HEALTHCHECK --interval=5s --timeout=3s --start-period=20s --retries=3 \
    CMD ["/opt/kvroute/bin/python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health', timeout=2)"]
ENTRYPOINT ["/opt/kvroute/bin/python", "-m", "deploy.engine"]
CMD ["--face", "vllm", "--host", "0.0.0.0", "--port", "8000", "--events-port", "5557", "--replay-port", "5657"]
