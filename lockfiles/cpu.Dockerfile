# cpu-classifier: torch 2.13.0 (cpu), Python 3.11
# lock sha256:4e15e6a1434359fe323ae7620bb521ebe0a892b2bdd3710ea09fdca7f9ba4cc9
# Written by envlock 0.1.0. Every file that goes in lies beside this one, checked against its sha256. To build:
#   DOCKER_BUILDKIT=1 docker build --network none -t cpu-classifier .

# Debian bookworm, bootstrapped from 112 locked packages
FROM scratch
ADD base.tar /

# The virtual environment, made by the base's own Python.
RUN --mount=type=bind,target=/dev/context sh /dev/context/steps/venv.sh 3.11

# The wheels: each list names files by sha256; a step installs them with PyPA's installer and compiles their bytecode.
RUN --mount=type=bind,target=/dev/context sh /dev/context/steps/wheels.sh 3.11 lists/01-torch.txt
RUN --mount=type=bind,target=/dev/context sh /dev/context/steps/wheels.sh 3.11 lists/02-numpy.txt
RUN --mount=type=bind,target=/dev/context sh /dev/context/steps/wheels.sh 3.11 lists/03-scikit-learn.txt
RUN --mount=type=bind,target=/dev/context sh /dev/context/steps/wheels.sh 3.11 lists/04-scipy.txt
RUN --mount=type=bind,target=/dev/context sh /dev/context/steps/wheels.sh 3.11 lists/05-sympy.txt
RUN --mount=type=bind,target=/dev/context sh /dev/context/steps/wheels.sh 3.11 lists/06-others.txt

# The start-up hook, the self-test, the lock, this file.
ADD runtime.tar /

ENV ATEN_CPU_CAPABILITY=avx2 CUBLASLT_WORKSPACE_SIZE=4096 CUBLAS_WORKSPACE_CONFIG=:4096:8 ENVLOCK_DETERMINISM=strict ENVLOCK_SEED=7 \
    ENVLOCK_TF32=0 ENVLOCK_THREADS=2 FLASH_ATTENTION_DETERMINISTIC=1 \
    GLIBC_TUNABLES="glibc.cpu.hwcaps=-AVX512F,-AVX512CD,-AVX512BW,-AVX512DQ,-AVX512VL" LANG=C.UTF-8 MKL_CBWR=AVX2 MKL_DYNAMIC=FALSE \
    MKL_NUM_THREADS=2 NCCL_ALGO=Ring NCCL_COLLNET_ENABLE=0 NCCL_NVLS_ENABLE=0 \
    NPY_DISABLE_CPU_FEATURES="X86_V4 AVX512_ICL AVX512_SPR" NVIDIA_TF32_OVERRIDE=0 NVTE_ALLOW_NONDETERMINISTIC_ALGO=0 \
    OMP_DYNAMIC=FALSE OMP_NUM_THREADS=2 ONEDNN_MAX_CPU_ISA=AVX2 OPENBLAS_CORETYPE=Haswell OPENBLAS_NUM_THREADS=2 \
    PATH=/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin PYTHONHASHSEED=7 PYTHONNOUSERSITE=1 \
    TORCHINDUCTOR_DETERMINISTIC=1 VIRTUAL_ENV=/opt/venv
LABEL dev.envlock.determinism=strict dev.envlock.lock.digest=sha256:4e15e6a1434359fe323ae7620bb521ebe0a892b2bdd3710ea09fdca7f9ba4cc9 \
      dev.envlock.release=0.1.0 org.opencontainers.image.base.name=debian:bookworm \
      org.opencontainers.image.created=2026-11-27T12:12:24Z \
      org.opencontainers.image.description="torch 2.13.0 (cpu), Python 3.11, locked by envlock" \
      org.opencontainers.image.title=cpu-classifier org.opencontainers.image.version=4e15e6a14343
CMD ["python"]
