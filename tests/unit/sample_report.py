"""A report as a GPU host would give it, for the tests of its forms. Its figures are made up and stand for nothing."""

from envlock.report import Check, Fingerprint, GpuFacts, HostFacts, ImageFacts, Remark, Report, Run, Variable, judge

DEPENDS = {"selftest": "1", "level": "strict", "tf32": "false", "image": "sha256:" + "a" * 64}
GPU = {"gpu.model": "NVIDIA H100 80GB HBM3", "gpu.capability": "9.0", "gpu.sm_count": "132", "gpu.mig": "none"}
CPU = {"cpu.vendor": "GenuineIntel", "cpu.isa": "aten=AVX2 onednn=Intel AVX2 mkl=AVX2", "cpu.threads": "4"}


def fingerprint(letter="b", device="cpu", name="result"):
    return Fingerprint(name=name, value=letter * 64, depends={**DEPENDS, **(CPU if device == "cpu" else GPU)})


def check(id_, *, group="repeatability", title=None, device="cpu", status="pass", **more):
    return Check(id=id_, group=group, title=title or id_, device=device, status=status, **more)


MATMUL = check("repeat.matmul", title="Matrix product", why="equal over 10 repeats", outcome="equal", fingerprints=(fingerprint(),))
GRID = check("repeat.grid_sample.cuda", title="grid_sample backward", device="cuda:0", status="unsupported", outcome="raises", why="raises")
CHECKS = (
    check("image.lock", group="image", title="the lock in the image is the one that its label names", why="sha256:" + "c" * 64),
    check("environment.variables", group="environment", title="Variables", proves="a fresh process gets exactly the locked variables"),
    MATMUL,
    check("repeat.matmul.cuda", title="Matrix product", device="cuda:0", fingerprints=(fingerprint("d", "cuda:0"),)),
    GRID,
    check("controls.tf32", group="controls", title="TF32 can be seen", device="cuda:0", why="off by 3e-4 with TF32 on"),
)

FAILING = check(
    "settings.tf32",
    group="settings",
    title="Full precision <b>",
    device="cuda:0",
    status="fail",
    fault="image",
    why="a float32 product is off by 3e-4 | more than float32 allows\nTF32 is on",
    hint="remove NVIDIA_TF32_OVERRIDE=1",
)
NOT_RUN = check("repeat.conv.cuda", title="Convolution", device="cuda:0", status="not-run", fault="host", why="no GPU is visible here")


IMAGE = ImageFacts(
    reference="resnet-cifar:latest",
    image_digest="sha256:" + "a" * 64,
    lock_digest="sha256:" + "c" * 64,
    name="resnet-cifar",
    platform="linux/amd64",
    level="strict",
    versions={"python": "3.11.2", "torch": "2.5.1+cu124", "cuda": "12.4", "numpy": "1.26.4"},
)
H100 = GpuFacts(device="cuda:0", name="NVIDIA H100 80GB HBM3", uuid="GPU-1", capability="9.0", sm_count=132, memory=85520809984, ecc=True)
HOST = HostFacts(
    name="gpu-box",
    system="Debian GNU/Linux 12",
    kernel="6.1.0",
    cpu="Xeon Platinum",
    cpu_vendor="GenuineIntel",
    isa_level="x86-64-v4",
    cores=16,
    driver="550.54.15",
    cuda="12.4",
    engine="26.1.3",
    gpus=(H100,),
)
RUN = Run(command="envlock verify resnet-cifar:latest", envlock="0.1.0", selftest="1", started="2026-11-29T18:00:00Z", seconds=42.0)
MEASUREMENTS = {
    "cpu": {"operations": {"matmul": {"spread": {"runs": 10, "distinct": 1, "largest": 0.0, "relative": 0.0}}}, "trainings": {}},
    "cuda:0": {
        "operations": {
            "index_add": {
                "spread": {"runs": 10, "distinct": 7, "largest": 0.5, "relative": 2e-6},
                "cost": {"off": 1e-4, "on": 1.4e-4, "ratio": 1.4, "low": 1.3, "high": 1.5},
            },
            "conv2d": {"cost": {"off": 1e-3, "on": 2.3e-3, "ratio": 2.3, "low": 2.2, "high": 2.4}},
            "grid_sample2d": {"refused": "grid_sampler_2d_backward_cuda does not have a deterministic implementation"},
        },
        "trainings": {"conv": {"cost": {"off": 0.1, "on": 0.11, "ratio": 1.1, "low": 1.0, "high": 1.2}}},
    },
}
HOST_REMARK = Remark(id="gpu-lost", severity="error", what="the GPU can no longer be reached", hint="restart the host", fault="host")


def report(*more, remarks=(), **changes):
    """The report, with more checks and with fields changed; its verdict follows."""
    checks = (*CHECKS, *more)
    verdict, summary = judge(checks, remarks)
    facts = {
        "verdict": verdict,
        "summary": summary,
        "image": IMAGE,
        "host": HOST,
        "run": RUN,
        "checks": checks,
        "environment": (Variable(name="PYTHONHASHSEED", locked="0", configured="0"),),
        "measurements": MEASUREMENTS,
        "remarks": remarks,
    }
    return Report(**{**facts, **changes})
