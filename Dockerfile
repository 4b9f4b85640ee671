# An image with the programs of a bundle and torch. Make the bundle first: tools/bundle.sh, or tools/bundle.sh --cuda
#
#   docker build -t ringside .
#   docker build -t ringside --build-arg BUNDLE='dist/ringside-*-cuda.tar.gz' --build-arg TORCH=cuda .
#   docker run --rm -v "$PWD/runs:/runs" ringside check /opt/ringside/recipes/quickstart/grpo.yaml
FROM debian:12-slim
ARG BUNDLE=dist/ringside-*-linux-x86_64.tar.gz
# build: LibTorch for the CPU (1.3 GB); cuda: with its CUDA libraries (4.7 GB)
ARG TORCH=build
RUN apt-get update \
 && apt-get install -y --no-install-recommends python3 python3-pip ca-certificates \
 && rm -rf /var/lib/apt/lists/*
COPY tools/requirements-${TORCH}.txt /tmp/requirements.txt
RUN pip3 install --break-system-packages --no-cache-dir --no-deps -r /tmp/requirements.txt
COPY ${BUNDLE} /tmp/bundle/
RUN mkdir /opt/ringside && tar -xzf /tmp/bundle/*.tar.gz -C /opt/ringside --strip-components=1 && rm -r /tmp/bundle \
 && useradd --create-home ringside
ENV PATH=/opt/ringside/bin:$PATH
USER ringside
ENTRYPOINT ["ringside"]
