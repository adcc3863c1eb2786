# cuda-sample: torch 2.5.1 (cu124), Python 3.11, CUDA 12.4, cuDNN 9.1.0.70, NCCL 2.21.5
# lock sha256:fdec32c37aea9a4dc6783b47abdfdd26617f6db0edc6d1535c204801487c7e31
# Written by envlock 0.1.0. Every file that goes in lies beside this one, checked against its sha256. To build:
#   DOCKER_BUILDKIT=1 docker build --network none -t cuda-sample .

# Debian bookworm, bootstrapped from 2 locked packages
FROM scratch
ADD base.tar /

# The virtual environment, made by the base's own Python.
RUN --mount=type=bind,target=/dev/context sh /dev/context/steps/venv.sh 3.11

# The wheels: each list names files by sha256; a step installs them with PyPA's installer and compiles their bytecode.
RUN --mount=type=bind,target=/dev/context sh /dev/context/steps/wheels.sh 3.11 lists/01-nvidia-cublas-cu12.txt
RUN --mount=type=bind,target=/dev/context sh /dev/context/steps/wheels.sh 3.11 lists/02-triton.txt
RUN --mount=type=bind,target=/dev/context sh /dev/context/steps/wheels.sh 3.11 lists/03-torch.txt
RUN --mount=type=bind,target=/dev/context sh /dev/context/steps/wheels.sh 3.11 lists/04-others.txt

# Debian packages that the spec asks for: git, libgl1.
RUN --mount=type=bind,target=/dev/context sh /dev/context/steps/apt.sh 1790000000

# The start-up hook, the self-test, the lock, this file.
ADD runtime.tar /

ENV GREETING="say \"hi\" to \$USER \\ all" PATH=/opt/venv/bin:/usr/bin:/bin PYTHONHASHSEED=7
LABEL dev.envlock.determinism=strict dev.envlock.lock.digest=sha256:fdec32c37aea9a4dc6783b47abdfdd26617f6db0edc6d1535c204801487c7e31 \
      dev.envlock.release=0.1.0 org.opencontainers.image.base.name=debian:bookworm \
      org.opencontainers.image.created=2026-09-21T14:13:20Z \
      org.opencontainers.image.description="torch 2.5.1 (cu124), Python 3.11, locked by envlock" \
      org.opencontainers.image.title=cuda-sample org.opencontainers.image.version=fdec32c37aea
WORKDIR "/workspace/my code"
USER 1000:1000
CMD ["python"]
