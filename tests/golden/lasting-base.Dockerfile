# cpu-sample: torch 2.13.0 (cpu), Python 3.11
# lock sha256:a946c50a1f031cb7bcf2cb6d2843f15cf83ab9bb9bfef2b5ddf8188af8aeb482
# Written by envlock 0.1.0. Every file that goes in lies beside this one, checked against its sha256. To build:
#   DOCKER_BUILDKIT=1 docker build --network none -t cpu-sample .

# From lab/notebook:3 without its ONBUILD, VOLUME, which a Dockerfile would pass on; once: docker load -i base-image.tar
FROM envlock-base:636f6e666967
# What a container of the base starts with, as whom and where, is not what one of this image does.
USER 0
WORKDIR /
ENTRYPOINT []

# The virtual environment, made by the base's own Python.
RUN --mount=type=bind,target=/dev/context sh /dev/context/steps/venv.sh 3.11

# The wheels: each list names files by sha256; a step installs them with PyPA's installer and compiles their bytecode.
RUN --mount=type=bind,target=/dev/context sh /dev/context/steps/wheels.sh 3.11 lists/01-torch.txt
RUN --mount=type=bind,target=/dev/context sh /dev/context/steps/wheels.sh 3.11 lists/02-others.txt

# The start-up hook, the self-test, the lock, this file.
ADD runtime.tar /

ENV LD_LIBRARY_PATH="" GREETING="say \"hi\" to \$USER \\ all" PATH=/opt/venv/bin:/usr/bin:/bin PYTHONHASHSEED=7
LABEL dev.envlock.determinism=strict dev.envlock.lock.digest=sha256:a946c50a1f031cb7bcf2cb6d2843f15cf83ab9bb9bfef2b5ddf8188af8aeb482 \
      dev.envlock.release=0.1.0 \
      org.opencontainers.image.base.digest=sha256:6d616e6966657374000000000000000000000000000000000000000000000000 \
      org.opencontainers.image.base.name=lab/notebook:3 org.opencontainers.image.created=2026-09-21T14:13:20Z \
      org.opencontainers.image.description="torch 2.13.0 (cpu), Python 3.11, locked by envlock" \
      org.opencontainers.image.title=cpu-sample org.opencontainers.image.version=a946c50a1f03
CMD ["python"]
