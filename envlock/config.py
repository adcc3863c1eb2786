"""What an image's config says, as its lock decides it: labels, user, folder, command. Pure."""

from __future__ import annotations

from datetime import UTC, datetime

from envlock.image import Settings
from envlock.lock import DebianBase, Lock

LOCK_LABEL = "dev.envlock.lock.digest"
OCI = "org.opencontainers.image"


def image_settings(lock: Lock) -> Settings:
    """The settings of the image of a lock."""
    return Settings(
        platform=lock.stack.platform,
        created=lock.epoch,
        environment=lock.environment,
        labels=image_labels(lock),
        user=lock.run.user or "",
        workdir=lock.run.workdir or "",
        command=("python",),
    )


def image_labels(lock: Lock) -> dict[str, str]:
    """The standard labels of the OCI image specification, and our own, sorted by name."""
    labels = {
        f"{OCI}.title": lock.name,
        f"{OCI}.description": f"torch {lock.stack.torch} ({lock.stack.variant}), Python {lock.stack.python}, locked by envlock",
        f"{OCI}.version": lock.short_digest,
        f"{OCI}.created": datetime.fromtimestamp(lock.epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        LOCK_LABEL: lock.digest,
        "dev.envlock.determinism": lock.determinism.level,
        "dev.envlock.release": lock.shipped.envlock,
    }
    if isinstance(lock.base, DebianBase):
        labels[f"{OCI}.base.name"] = f"debian:{lock.base.suite}"
    else:
        labels[f"{OCI}.base.name"] = lock.base.reference
        labels[f"{OCI}.base.digest"] = lock.base.manifest_digest
    return dict(sorted(labels.items()))
