# rooflinekit with its service: docker build -t rooflinekit . && docker run --rm rooflinekit estimate llama3-8b --batch 32
FROM python:3.13-slim AS build
WORKDIR /source
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.13-slim
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir --disable-pip-version-check "$(ls /wheels/*.whl)[serve,watch]" \
    && useradd --uid 10001 --create-home rooflinekit \
    && install -d -o rooflinekit /shared
USER 10001
WORKDIR /home/rooflinekit
EXPOSE 8000
# Any address but this machine's own needs a token: docker run -e ROOFLINEKIT_TOKEN=... -p 127.0.0.1:8000:8000 rooflinekit
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://localhost:8000/healthz', timeout=4)"]
ENTRYPOINT ["rooflinekit"]
CMD ["serve", "--host", "0.0.0.0"]
