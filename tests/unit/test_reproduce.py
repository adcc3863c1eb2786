"""What an image made again is held against, what follows from it, and which files are taken over from the store."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from stand_in_engine import sample_lock

from envlock import docker_build, reproduce
from envlock import lock as locks
from envlock.config import image_settings
from envlock.docker_build import DockerBuilt
from envlock.engine import BuildContext
from envlock.errors import Exit, ImageDiffers, Problems
from envlock.image import make_image
from envlock.layers import Layer
from envlock.lock import Built, CopiedFile, LockFile, Wheel
from envlock.locking import ChosenLock
from envlock.progress import Silent
from envlock.reproduce import Reproduction, keep_rootfs, take_over
from envlock.rootfs import read_rootfs
from envlock.store import Store

LOCK = sample_lock()
LAYER = Layer("sha256:" + "1" * 64, 1, "everything")
IMAGE = make_image((LAYER,), image_settings(LOCK))
MADE = IMAGE.digest


def digest(letter: str) -> str:
    return "sha256:" + letter * 64


def recorded(**changes) -> Built:
    facts = {"lock": LOCK.digest, "image_digest": MADE, "manifest_digest": digest("2"), "diff_ids": (LAYER.diff_id,)}
    return Built(**{**facts, **changes})


def tree(**files: bytes) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as tar:
        for name, content in files.items():
            header = tarfile.TarInfo(name)
            header.size = len(content)
            tar.addfile(header, io.BytesIO(content))
    return target.getvalue()


class Engine:
    """Stands for an engine: what each name exports, and which tags it was asked to take away."""

    platform = LOCK.stack.platform

    def __init__(self, **trees: bytes) -> None:
        self.trees = trees
        self.images = {}
        self.untagged: list[str] = []

    def image(self, reference: str):
        return self.images.get(reference)

    def export(self, reference: str) -> Iterator[bytes]:
        yield self.trees[reference]

    def untag(self, tag: str) -> None:
        self.untagged.append(tag)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Engine:
    """An engine in which both routes make an image: `assemble` and `dockerfile` are the trees that they give."""
    engine = Engine(assemble=tree(a=b"one"), dockerfile=tree(a=b"one"))
    names = iter(("assemble", "dockerfile"))
    monkeypatch.setattr("envlock.engine.temporary_name", lambda: next(names))
    monkeypatch.setattr(reproduce, "load_image", lambda *_: (IMAGE, frozenset()))
    built = DockerBuilt("sha256:x", LOCK, ("t",), Path("log"), 1.0, "client")
    monkeypatch.setattr(reproduce, "build_with_docker", lambda *_, from_cache: built if not from_cache else pytest.fail("from the cache"))
    return engine


def again(engine: Engine, tmp_path: Path, built: Built | None, *routes: reproduce.Route, against: str | None = None) -> Reproduction:
    chosen = ChosenLock(tmp_path / "x.lock.yaml", LOCK, built)
    return reproduce.reproduce(chosen, routes or ("assemble",), against, "upstream", engine, Store(tmp_path / "store"), Silent())


def test_the_recorded_image_comes_out(made, tmp_path):
    found = again(made, tmp_path, recorded())
    assert (found.outcome, found.exit) == ("reproduced", Exit.OK)
    assert made.untagged == ["assemble"]
    assert "REPRODUCED" in found.as_text()


def test_another_image_names_its_layer(made, tmp_path):
    found = again(made, tmp_path, recorded(image_digest=digest("9"), diff_ids=(digest("8"),)))
    assert (found.outcome, found.exit) == ("differs", Exit.DOES_NOT_HOLD)
    assert found.notes == (f"layer 1 differs: everything, recorded {digest('8')[:19]}…, made {LAYER.diff_id[:19]}…",)


@pytest.mark.parametrize("built", [None, recorded(lock=digest("7"))], ids=["nothing", "a build of other inputs"])
def test_without_a_record_it_is_inconclusive(made, tmp_path, built):
    found = again(made, tmp_path, built)
    assert (found.outcome, found.exit) == ("inconclusive", Exit.INCONCLUSIVE)


def test_both_routes_are_held_against_each_other(made, tmp_path):
    found = again(made, tmp_path, None, "assemble", "dockerfile")
    assert [(held.what, held.route, held.equal) for held in found.held] == [("rootfs digest", "dockerfile", True)]
    assert found.outcome == "reproduced"


def test_a_file_that_differs_between_the_routes_is_explained(made, tmp_path):
    made.trees["dockerfile"] = tree(a=b"one\ntwo")
    made.trees["assemble"] = tree(a=b"one\nTwo")
    found = again(made, tmp_path, None, "assemble", "dockerfile")
    assert found.exit is Exit.DOES_NOT_HOLD
    text = found.as_text()
    assert "content    /a" in text
    assert "line 2, byte 4: 'Two' against 'two'" in text
    assert "layer with Debian bookworm" in text
    assert found.as_json()["comparisons"][0]["differences"][0]["first"]["line"] == 2


@pytest.mark.parametrize(("content", "equal"), [(b"one", True), (b"other", False)])
def test_what_docker_makes_is_held_against_the_recorded_rootfs_digest(made, tmp_path, content, equal):
    made.trees["assemble"] = tree(a=content)  # the name that the one image made here gets
    known = read_rootfs(io.BytesIO(tree(a=b"one")), "one").digest
    found = again(made, tmp_path, recorded(rootfs_digest=known), "dockerfile")
    assert [(held.against, held.equal) for held in found.held] == [("the lock's record", equal)]


def test_what_docker_makes_is_held_against_the_image_that_was_built(made, tmp_path):
    made.images[f"{LOCK.name}:{LOCK.short_digest}"] = SimpleNamespace(id="kept", made=None, digest=MADE)
    made.trees["kept"] = tree(a=b"one", b=b"more")
    found = again(made, tmp_path, recorded(), "dockerfile")
    assert (found.outcome, [item.difference.path for item in found.comparisons[0].found]) == ("differs", ["b"])


def test_an_image_in_the_engine_is_compared(made, tmp_path):
    made.images["mine:1"] = SimpleNamespace(id="mine", made=None, digest=None)
    made.trees["mine"] = tree(a=b"one", b=b"more")
    found = again(made, tmp_path, None, against="mine:1")
    assert [(held.against, held.equal) for held in found.held] == [("mine:1", False)]
    assert [item.difference.kind for item in found.comparisons[0].found] == ["missing"]


def test_the_rootfs_digest_is_kept_beside_its_image(tmp_path):
    chosen = ChosenLock(tmp_path / "x.lock.yaml", LOCK, recorded())
    chosen.path.write_bytes(locks.dump(LockFile(lock=LOCK, built=recorded())))
    keep_rootfs(chosen, None, digest("5"))
    assert locks.read(chosen.path).built == recorded()
    keep_rootfs(chosen, MADE, digest("5"))
    assert locks.read(chosen.path).built == recorded(rootfs_digest=digest("5"))
    # A later build of the same image knows nothing of it and leaves it there.
    replace(chosen, built=recorded(rootfs_digest=digest("5"))).record(recorded())
    assert locks.read(chosen.path).built.rootfs_digest == digest("5")
    with pytest.raises(ImageDiffers):
        keep_rootfs(chosen, None, digest("6"))


def stored(store: Store, content: bytes) -> str:
    sha256 = hashlib.sha256(content).hexdigest()
    with store.incoming(sha256) as blob:
        blob.write(content)
    return sha256


def test_what_has_no_upstream_comes_from_the_store(tmp_path):
    store, fresh = Store(tmp_path / "store"), Store(tmp_path / "fresh")
    wheel, source = stored(store, b"wheel"), stored(store, b"source")
    lock = sample_lock(
        wheels=(Wheel(name="w", version="1", file="w.whl", sha256=wheel, size=5, index="default"),),
        files=(CopiedFile(source="a.py", to="/a.py", sha256=source, size=6),),
    )
    take_over(lock, "upstream", store, fresh)
    assert (fresh.has(source), fresh.has(wheel)) == (True, False)
    take_over(lock, "store", store, fresh)
    assert fresh.has(wheel)
    assert not fresh.has(lock.shipped.sha256)


def test_a_flipped_byte_in_the_store_is_named(tmp_path):
    store = Store(tmp_path / "store")
    sha256 = stored(store, b"wheel")
    store.path(sha256).chmod(0o644)
    store.path(sha256).write_bytes(b"whale")
    lock = sample_lock(wheels=(Wheel(name="w", version="1", file="w-1.whl", sha256=sha256, size=5, index="default"),))
    with pytest.raises(Problems) as caught:
        take_over(lock, "store", store, Store(tmp_path / "fresh"))
    assert [finding.what for finding in caught.value.findings] == ["w-1.whl in the store is damaged"]


def test_a_context_is_one_tar_that_depends_on_its_content_alone(tmp_path):
    files = {"wheels/a.whl": b"a" * 700, "Dockerfile": b"FROM other", "SHA256SUMS": b"x", ".dockerignore": b"Dockerfile"}
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    context = BuildContext(tmp_path, b"FROM scratch\n", frozenset({"SHA256SUMS", ".dockerignore"}))
    first = b"".join(context.tar())
    (tmp_path / "wheels/a.whl").chmod(0o600)
    assert b"".join(context.tar()) == first
    with tarfile.open(fileobj=io.BytesIO(first)) as tar:
        content = {member.name: tar.extractfile(member).read() for member in tar}
    assert content == {"Dockerfile": b"FROM scratch\n", "wheels/a.whl": b"a" * 700}


def test_the_dockerfile_starts_from_the_base_as_the_engine_has_it(monkeypatch):
    monkeypatch.setattr(docker_build.dockerfile, "base_reference", lambda lock: "debian@sha256:1")
    text = b"# debian@sha256:1\nFROM debian@sha256:1\nRUN x\n"
    assert docker_build._starting_from(text, LOCK, "incoming:1") == b"# debian@sha256:1\nFROM incoming:1\nRUN x\n"
    assert docker_build._starting_from(text, LOCK, "") == text
