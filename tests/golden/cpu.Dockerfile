# cpu-sample: torch 2.13.0 (cpu), Python 3.11
# lock sha256:f54b9ba88a41a91e25925911adfe03f3ce8a2dfeac31f301655edc5e954c0846
# Written by envlock 0.1.0. Every file that goes in lies beside this one, checked against its sha256. To build:
#   DOCKER_BUILDKIT=1 docker build --network none -t cpu-sample .

# Debian bookworm, bootstrapped from 2 locked packages
FROM scratch
ADD base.tar /

# The virtual environment, made by the base's own Python.
RUN --mount=type=bind,target=/dev/context sh /dev/context/steps/venv.sh 3.11

# The wheels: each list names files by sha256; a step installs them with PyPA's installer and compiles their bytecode.
RUN --mount=type=bind,target=/dev/context sh /dev/context/steps/wheels.sh 3.11 lists/01-torch.txt
RUN --mount=type=bind,target=/dev/context sh /dev/context/steps/wheels.sh 3.11 lists/02-others.txt

# The start-up hook, the self-test, the lock, this file.
ADD runtime.tar /

ENV GREETING="say \"hi\" to \$USER \\ all" PATH=/opt/venv/bin:/usr/bin:/bin PYTHONHASHSEED=7
LABEL dev.envlock.determinism=strict dev.envlock.lock.digest=sha256:f54b9ba88a41a91e25925911adfe03f3ce8a2dfeac31f301655edc5e954c0846 \
      dev.envlock.release=0.1.0 org.opencontainers.image.base.name=debian:bookworm \
      org.opencontainers.image.created=2026-09-21T14:13:20Z \
      org.opencontainers.image.description="torch 2.13.0 (cpu), Python 3.11, locked by envlock" \
      org.opencontainers.image.title=cpu-sample org.opencontainers.image.version=f54b9ba88a41
CMD ["python"]
