# The router alone. From the repository: docker build -f deploy/docker/router.Dockerfile -t kvroute .

FROM python:3.13.5-slim-bookworm AS build
# Any compiler of this Debian release will do; none of it reaches the last layer.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /src
RUN python -m venv /opt/kvroute
COPY pyproject.toml requirements.lock CMakeLists.txt README.md LICENSE ./
COPY app app
COPY router router
COPY index index
COPY engine engine
COPY store store
# The lock file as constraints: its exact versions, but only of what running needs.
RUN /opt/kvroute/bin/pip install --no-cache-dir --constraint requirements.lock scikit-build-core nanobind cmake ninja \
 && /opt/kvroute/bin/pip install --no-cache-dir --no-build-isolation --constraint requirements.lock . \
 && /opt/kvroute/bin/pip uninstall --yes scikit-build-core nanobind cmake ninja pip

FROM python:3.13.5-slim-bookworm
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
RUN useradd --system --uid 10001 --no-create-home kvroute
COPY --from=build /opt/kvroute /opt/kvroute
USER 10001:10001
EXPOSE 8900
HEALTHCHECK --interval=5s --timeout=3s --start-period=20s --retries=3 \
    CMD ["/opt/kvroute/bin/python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8900/healthz', timeout=2)"]
ENTRYPOINT ["/opt/kvroute/bin/kvroute"]
CMD ["serve", "--config", "/etc/kvroute/fleet.yaml", "--host", "0.0.0.0", "--port", "8900"]
