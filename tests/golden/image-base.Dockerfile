# cuda-sample: torch 2.5.1 (cu124), Python 3.11, CUDA 12.4, cuDNN 9.1.0.70, NCCL 2.21.5
# lock sha256:effb78f38427c8045dd4421958e2dfc3e6193ecd737f1fd6e01ca8398000e250
# Written by envlock 0.1.0. Every file that goes in lies beside this one, checked against its sha256. To build:
#   DOCKER_BUILDKIT=1 docker build --network none -t cuda-sample .

# nvidia/cuda:12.4.1-base-ubuntu22.04, by its digest
FROM nvidia/cuda@sha256:6d616e6966657374000000000000000000000000000000000000000000000000
# What a container of the base starts with, as whom and where, is not what one of this image does.
USER 0
WORKDIR /
ENTRYPOINT []

# The virtual environment, made by the base's own Python.
RUN --mount=type=bind,target=/dev/context sh /dev/context/steps/venv.sh 3.11

# The wheels: each list names files by sha256; a step installs them with PyPA's installer and compiles their bytecode.
RUN --mount=type=bind,target=/dev/context sh /dev/context/steps/wheels.sh 3.11 lists/01-nvidia-cublas-cu12.txt
RUN --mount=type=bind,target=/dev/context sh /dev/context/steps/wheels.sh 3.11 lists/02-triton.txt
RUN --mount=type=bind,target=/dev/context sh /dev/context/steps/wheels.sh 3.11 lists/03-torch.txt
RUN --mount=type=bind,target=/dev/context sh /dev/context/steps/wheels.sh 3.11 lists/04-others.txt

# The start-up hook, the self-test, the lock, this file.
ADD runtime.tar /

ENV LD_LIBRARY_PATH="" GREETING="say \"hi\" to \$USER \\ all" PATH=/opt/venv/bin:/usr/bin:/bin PYTHONHASHSEED=7
LABEL dev.envlock.determinism=strict dev.envlock.lock.digest=sha256:effb78f38427c8045dd4421958e2dfc3e6193ecd737f1fd6e01ca8398000e250 \
      dev.envlock.release=0.1.0 \
      org.opencontainers.image.base.digest=sha256:6d616e6966657374000000000000000000000000000000000000000000000000 \
      org.opencontainers.image.base.name=nvidia/cuda:12.4.1-base-ubuntu22.04 org.opencontainers.image.created=2026-09-21T14:13:20Z \
      org.opencontainers.image.description="torch 2.5.1 (cu124), Python 3.11, locked by envlock" \
      org.opencontainers.image.title=cuda-sample org.opencontainers.image.version=effb78f38427
WORKDIR "/workspace/my code"
USER 1000:1000
CMD ["python"]
