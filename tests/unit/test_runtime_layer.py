"""A lock and the files that envlock ships in, the uppermost layer out."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

import pytest
from layer_helpers import file, folder, members, symlink, tree

from envlock.errors import BuildFailed, FileGone
from envlock.layers.canonical import ASSEMBLED, Entry, Tree
from envlock.layers.runtime import plan_runtime
from envlock.lock import CopiedFile, DebianBase, Lock, Run, Settings, Shipped, Stack, Wheel
from envlock.store import Store

LIB = {"envlock/__init__.py": b"v = 1\n", "envlock/runtime/hook.py": b"def start(): ...\n"}
DOCKERFILE = b"FROM scratch\n"
PASSWD = "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
GROUP = "root:x:0:\nusers:x:100:\n"


def base(passwd: str = PASSWD, group: str = GROUP, *more) -> Tree:
    return tree(
        file("etc/passwd", passwd.encode()), file("etc/group", group.encode()), folder("home", mode=0o755), folder("opt", mtime=77), *more
    )


def a_lock(files: tuple[CopiedFile, ...] = (), user: str | None = None, workdir: str | None = None) -> Lock:
    return Lock(
        name="demo",
        spec="sha256:" + "0" * 64,
        epoch=1,
        stack=Stack(torch="2.5.1", variant="cpu", python="3.11", platform="linux/amd64"),
        base=DebianBase(suite="bookworm", snapshot="20261128T201100Z", date=1, debs=()),
        wheels=(),
        files=files,
        determinism=Settings(level="strict", seed=0, tf32=False, threads=4),
        environment={"A": "b"},
        run=Run(user=user, workdir=workdir),
        shipped=Shipped(envlock="0.1", sha256="1" * 64, size=1),
        installer=Wheel(name="installer", version="1", file="installer-1-py3-none-any.whl", sha256="2" * 64, size=1, index="default"),
    )


def stored(store: Store, to: str, content: bytes, executable: bool = False) -> CopiedFile:
    with store.incoming() as blob:
        blob.write(content)
    sha256 = hashlib.sha256(content).hexdigest()
    return CopiedFile(source="src/" + Path(to).name, to=to, sha256=sha256, size=len(content), executable=executable)


def written(lock: Lock, store: Store, below: Tree | None = None) -> bytes:
    target = io.BytesIO()
    plan_runtime(lock, LIB, (), DOCKERFILE, store, below or base()).write(target, "runtime")
    return target.getvalue()


def content(raw: bytes, path: str) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
        return tar.extractfile(path).read()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def test_it_holds_hook_lock_dockerfile_and_package_and_nothing_else(store):
    lock = a_lock()
    raw = written(lock, store)
    found = members(raw)
    assert sorted(path for path, member in found.items() if member.isfile()) == [
        "opt/envlock/Dockerfile",
        "opt/envlock/lib/envlock/__init__.py",
        "opt/envlock/lib/envlock/runtime/hook.py",
        "opt/envlock/lock.json",
        "opt/venv/lib/python3.11/site-packages/envlock.pth",
    ]
    assert content(raw, "opt/envlock/lock.json") == lock.json_bytes
    assert "sha256:" + hashlib.sha256(content(raw, "opt/envlock/lock.json")).hexdigest() == lock.digest
    assert content(raw, "opt/envlock/Dockerfile") == DOCKERFILE
    assert b"/opt/envlock/lib" in content(raw, "opt/venv/lib/python3.11/site-packages/envlock.pth")
    assert {member.mtime for path, member in found.items() if path != "opt"} == {ASSEMBLED}
    assert {(member.uid, member.gid) for member in found.values()} == {(0, 0)}


def test_it_depends_on_its_inputs_alone(store):
    assert written(a_lock(user="1000"), store) == written(a_lock(user="1000"), store)


def test_files_of_the_spec_belong_to_its_user(store):
    files = (stored(store, "/workspace/src/train.py", b"train"), stored(store, "/workspace/src/run.sh", b"#!", executable=True))
    found = members(written(a_lock(files, user="1000:1001", workdir="/workspace"), store))
    script = found["workspace/src/run.sh"]
    assert (script.mode, script.uid, script.gid) == (0o755, 1000, 1001)
    assert found["workspace/src/train.py"].mode == 0o644
    assert [(found[path].uid, found[path].mode) for path in ("workspace", "workspace/src", "home/user")] == [(1000, 0o755)] * 3
    assert (found["home"].uid, found["opt"].mtime) == (0, 77)


def test_without_a_user_they_belong_to_root(store):
    found = members(written(a_lock((stored(store, "/data/x", b"x"),), workdir="/work/deep"), store))
    assert {member.uid for member in found.values()} == {0}
    assert found["work/deep"].isdir()
    assert "etc/passwd" not in found


def test_a_user_whom_the_base_does_not_know_gets_rows_and_a_home(store):
    raw = written(a_lock(user="1000"), store, base(PASSWD, GROUP, file("usr/bin/bash"), symlink("bin", "usr/bin")))
    assert content(raw, "etc/passwd").decode() == PASSWD + "user:x:1000:1000::/home/user:/bin/bash\n"
    assert content(raw, "etc/group").decode() == GROUP + "user:x:1000:\n"


@pytest.mark.parametrize("kind", ["symlink", "hardlink"])
def test_a_table_of_users_that_is_a_link_is_not_overwritten(store, kind):
    linked = Tree().with_entries([file("lib/users", PASSWD.encode()), Entry("etc/passwd", kind, target="lib/users")], "base")
    with pytest.raises(BuildFailed, match="/etc/passwd") as caught:
        written(a_lock(user="1000"), store, linked)
    assert "link" in caught.value.why


def test_a_user_whom_the_base_knows_stays_as_they_are(store):
    found = members(written(a_lock(user="65534:100"), store))
    assert not {"etc/passwd", "etc/group", "nonexistent"} & set(found)
    assert not {"etc/passwd", "home"} & set(members(written(a_lock(user="0"), store)))


def test_names_that_are_taken_are_not_taken_again(store):
    raw = written(a_lock(user="1000:50"), store, base(PASSWD + "user:x:7:7::/:/bin/sh", GROUP))
    assert content(raw, "etc/passwd").decode().endswith("user:x:7:7::/:/bin/sh\nuser1000:x:1000:50::/home/user1000:/bin/sh\n")
    assert content(raw, "etc/group").decode() == GROUP + "group50:x:50:\n"


def test_a_workdir_that_the_base_has_is_left_as_it_is(store):
    below = base(PASSWD, GROUP, folder("srv", mode=0o2775, mtime=5))
    assert "srv" not in members(written(a_lock(user="1000", workdir="/srv"), store, below))


def test_a_missing_file_says_so(store):
    gone = CopiedFile(source="src/x.py", to="/x.py", sha256="a" * 64, size=1)
    with pytest.raises(FileGone, match=r"src/x\.py is missing"):
        written(a_lock((gone,)), store)


def test_a_file_that_changed_in_the_store_is_refused(store):
    file_ = stored(store, "/x.py", b"locked")
    store.path(file_.sha256).chmod(0o644)
    store.path(file_.sha256).write_bytes(b"forged")
    with pytest.raises(BuildFailed, match="not the file that was locked"):
        written(a_lock((file_,)), store)


@pytest.mark.parametrize(
    ("to", "why"),
    [("/etc/hosts", "engines put their own file there"), ("/home", "would hide all that it holds")],
)
def test_places_that_cannot_be_filled_are_refused(store, to, why):
    with pytest.raises(BuildFailed) as refused:
        written(a_lock((stored(store, to, b"x"),)), store)
    assert why in refused.value.why


def test_files_follow_the_links_of_the_base(store):
    found = members(
        written(a_lock((stored(store, "/bin/tool", b"x"),)), store, base(PASSWD, GROUP, folder("usr/bin"), symlink("bin", "usr/bin")))
    )
    assert "usr/bin/tool" in found
    assert "bin" not in found
