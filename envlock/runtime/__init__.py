"""What ships inside the image: the start-up hook, and helpers for user code.

Every process of the image imports this package, so it imports nothing: a helper is loaded when it is first named. Helpers need
the standard library, NumPy and torch; they work outside the image too.
"""

_HOMES = {
    "dataloader_generator": "seeds",
    "deterministic": "flags",
    "exact_all_reduce": "allreduce",
    "fingerprint": "fingerprints",
    "gradient_fingerprint": "fingerprints",
    "seed_everything": "seeds",
    "seed_worker": "seeds",
    "snapshot": "snapshots",
    "status": "state",
}

__all__ = list(_HOMES)


def __getattr__(name: str):  # type: ignore[no-untyped-def]
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list:  # type: ignore[type-arg]
    return sorted([*globals(), *_HOMES])
