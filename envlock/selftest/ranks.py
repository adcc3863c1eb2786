"""What every rank runs under torchrun: collectives, repeated, and a small data-parallel training.

`python -m envlock.selftest.ranks FOLDER`: each rank writes its results to FOLDER/RANK.json.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

REPEATS = 5
STEPS = 6
ELEMENTS = 40_000


def main(folder: str) -> None:
    """Join the group, compute, write."""
    import datetime

    import torch
    import torch.distributed as dist

    rank = int(os.environ["RANK"])
    local = int(os.environ.get("LOCAL_RANK", "0"))
    on_gpu = os.environ.get("ENVLOCK_BACKEND") == "nccl"
    device = f"cuda:{local}" if on_gpu else "cpu"
    if on_gpu:
        torch.cuda.set_device(local)
    dist.init_process_group("nccl" if on_gpu else "gloo", timeout=datetime.timedelta(seconds=120))
    try:
        found = {"world": dist.get_world_size(), **collectives(device), **data_parallel(device)}
    finally:
        dist.destroy_process_group()
    Path(folder, f"{rank}.json").write_text(json.dumps(found), encoding="utf-8")


def share(rank: int, device: str) -> torch.Tensor:
    """A rank's numbers: of very different sizes, so that the order of a sum shows."""
    import torch

    generator = torch.Generator().manual_seed(1000 + rank)
    values = torch.randn(ELEMENTS, generator=generator) * torch.exp(4 * torch.randn(ELEMENTS, generator=generator))
    return values.to(device)


def collectives(device: str) -> dict[str, Any]:
    """Fingerprints of each collective, once a repeat; and of two sums with the ranks' shares dealt in other orders."""
    import torch
    import torch.distributed as dist

    from envlock.runtime.allreduce import exact_all_reduce
    from envlock.runtime.fingerprints import fingerprint

    rank, world = dist.get_rank(), dist.get_world_size()
    mine = share(rank, device)
    found: dict[str, list[str]] = {"all_reduce": [], "all_gather": [], "exact": []}
    scattered = hasattr(dist, "reduce_scatter_tensor") and device != "cpu"
    if scattered:
        found["reduce_scatter"] = []
    for _ in range(REPEATS):
        total = mine.clone()
        dist.all_reduce(total)
        found["all_reduce"].append(fingerprint(total))
        gathered = [torch.empty_like(mine) for _ in range(world)]
        dist.all_gather(gathered, mine)
        found["all_gather"].append(fingerprint(gathered))
        found["exact"].append(fingerprint(exact_all_reduce(mine)))
        if scattered:
            part = torch.empty(ELEMENTS // world, device=device)
            dist.reduce_scatter_tensor(part, mine[: part.numel() * world].contiguous())
            found["reduce_scatter"].append(fingerprint(part))
    orders: dict[str, list[str]] = {"float": [], "exact": []}
    for turn in range(world):
        dealt = share((rank + turn) % world, device)
        orders["exact"].append(fingerprint(exact_all_reduce(dealt)))
        dist.all_reduce(dealt)
        orders["float"].append(fingerprint(dealt))
    return {"collectives": found, "orders": orders}


def data_parallel(device: str) -> dict[str, Any]:
    """By step: gradients' fingerprints under DistributedDataParallel. Step one's buckets are other than later ones' by design."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from envlock.runtime.fingerprints import fingerprint, gradient_fingerprint
    from envlock.runtime.seeds import seed_everything

    seed_everything(5)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(128, 8)).to(device)
    initial = fingerprint(model)
    seed_everything(5, dist.get_rank())
    parallel = DistributedDataParallel(model, bucket_cap_mb=0.01)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    data = torch.Generator().manual_seed(70 + dist.get_rank())
    gradients, dropped = [], []
    for _ in range(STEPS):
        values, labels = torch.randn(16, 64, generator=data), torch.randint(8, (16,), generator=data)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(parallel(values.to(device)), labels.to(device)).backward()
        gradients.append(gradient_fingerprint(model))
        optimizer.step()
        dropped.append(fingerprint(torch.nn.functional.dropout(torch.ones(256, device=device), 0.5)))
    return {"initial": initial, "gradients": gradients, "dropout": dropped}


if __name__ == "__main__":
    main(sys.argv[1])
