"""What an image's config says is what its lock says."""

from __future__ import annotations

from sample_locks import ARCHIVE, EPOCH, cpu_lock, cuda_lock

from envlock.config import image_labels, image_settings


def test_settings() -> None:
    lock = cuda_lock()
    settings = image_settings(lock)
    assert settings.environment == lock.environment
    assert (settings.user, settings.workdir) == ("1000:1000", "/workspace/my code")
    assert (settings.platform, settings.created) == ("linux/amd64", EPOCH)
    assert settings.command == ("python",)
    assert (image_settings(cpu_lock()).user, image_settings(cpu_lock()).workdir) == ("", "")


def test_labels_are_the_standard_ones_and_the_digest_of_the_lock() -> None:
    lock = cpu_lock()
    labels = image_labels(lock)
    assert list(labels) == sorted(labels)
    assert labels["dev.envlock.lock.digest"] == lock.digest
    assert labels["org.opencontainers.image.title"] == "cpu-sample"
    assert labels["org.opencontainers.image.version"] == lock.short_digest
    assert labels["org.opencontainers.image.created"] == "2026-09-21T14:13:20Z"
    assert labels["org.opencontainers.image.base.name"] == "debian:bookworm"
    assert "org.opencontainers.image.base.digest" not in labels
    assert image_labels(cpu_lock(base=ARCHIVE))["org.opencontainers.image.base.digest"] == ARCHIVE.manifest_digest
