# ReCycle with all that trains, on CPUs or on NVIDIA GPUs (torch's wheel brings CUDA):
#   docker build -t recycle .
#   docker run --rm recycle plan -D 3 -P 4 -M 6 --dead W1_2
#   docker run --rm --gpus all --shm-size 8g -v "$PWD:/work" recycle train job.toml -o run
FROM python:3.12-slim
COPY pyproject.toml hatch_build.py README.md LICENSE /src/
COPY recycle /src/recycle
COPY scripts/constraints.txt /src/scripts/
RUN pip install --no-cache-dir -c /src/scripts/constraints.txt "/src[plan,train]"
# As the first process of a container, tini passes signals on and waits for orphans.
RUN apt-get update && apt-get install -y --no-install-recommends tini && rm -rf /var/lib/apt/lists/*
WORKDIR /work
ENTRYPOINT ["tini", "--", "recycle"]
CMD ["--help"]
