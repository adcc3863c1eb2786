"""Resolving against small indexes on the loopback interface, with the real uv."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from loopback import Answer, Request
from package_index import add_pytorch, content_path, make_wheel, package_index, write_wheels

from envlock.errors import EnvlockError, Exit, Finding, exit_code_of
from envlock.fetch import Wanted, fetch_all
from envlock.lock import Wheel
from envlock.progress import Silent
from envlock.resolve.indexes import read_indexes
from envlock.resolve.pages import Pages
from envlock.resolve.python import PythonWish, newest_date, resolve_wheels
from envlock.resolve.uv import Uv
from envlock.resolve.wheelsources import WheelSources
from envlock.store import Store
from envlock.transport import Patience, Transport

FILELOCK = "filelock-3.0-py3-none-any.whl"
TORCH = "torch-2.5.1-cp311-cp311-manylinux1_x86_64.whl"
TORCH_CU121 = "torch-2.5.1+cu121-cp311-cp311-linux_x86_64.whl"
VISION = "torchvision-0.20.1-cp311-cp311-manylinux1_x86_64.whl"
VISION_CU121 = "torchvision-0.20.1+cu121-cp311-cp311-linux_x86_64.whl"
CU121 = {
    TORCH_CU121: make_wheel(TORCH_CU121, ["filelock"]),
    VISION_CU121: make_wheel(VISION_CU121, ["torch==2.5.1"]),
}
PUBLIC = {
    FILELOCK: make_wheel(FILELOCK),
    "filelock-2.0-py3-none-any.whl": make_wheel("filelock-2.0-py3-none-any.whl"),
    TORCH: make_wheel(TORCH, ["filelock"]),
    VISION: make_wheel(VISION, ["torch==2.5.1"]),
    "timm-1.0-py3-none-any.whl": make_wheel("timm-1.0-py3-none-any.whl", ["torchvision"]),
}
FROM_PYTORCH = {"torch_index": "pytorch", "torch_index_path": "whl/cu121"}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def user(tmp_path: Path) -> Callable[..., dict[str, str]]:
    """The environment of a user whose settings are the arguments alone."""

    def environ(index: str | None = None, **variables: str) -> dict[str, str]:
        made = {"HOME": str(tmp_path / "home"), "PATH": os.environ["PATH"], "PIP_CONFIG_FILE": os.devnull, "UV_HTTP_RETRIES": "0"}
        made |= {"UV_CACHE_DIR": str(tmp_path / "uv-cache")} | variables
        if "UV_CONFIG_FILE" not in made:
            made["UV_NO_CONFIG"] = "1"
        return made | ({"UV_DEFAULT_INDEX": f"{index}/simple"} if index else {})

    return environ


def wish(*requirements: str, **more: object) -> PythonWish:
    return PythonWish(requirements, **more)  # type: ignore[arg-type]


def resolve(wish: PythonWish, store: Store, environ: dict[str, str], keep: tuple[Wheel, ...] = ()) -> dict[str, Wheel]:
    return {wheel.name: wheel for wheel in resolve_wheels(wish, store, Silent(), keep, environ)}


def refusal(wish: PythonWish, store: Store, environ: dict[str, str], exit_code: Exit) -> tuple[Finding, ...]:
    with pytest.raises(EnvlockError) as caught:
        resolve(wish, store, environ)
    assert exit_code_of(caught.value) == exit_code
    return caught.value.findings


def sources(wheel: Wheel, environ: dict[str, str]) -> list[str]:
    transport = Transport(Patience(attempts=1, pause=0), environ)
    return [str(source) for source in WheelSources(read_indexes(Uv.find(), environ), Pages(transport)).of(wheel)]


def fetch(wheel: Wheel, store: Store, environ: dict[str, str]) -> None:
    transport = Transport(Patience(attempts=1, pause=0), environ)
    of = WheelSources(read_indexes(Uv.find(), environ), Pages(transport)).of
    fetch_all([Wanted(wheel.file, wheel.sha256, wheel.size, lambda: of(wheel))], store, Silent(), transport=transport)


# what is locked


def test_every_wheel_is_locked_by_the_bytes_that_were_fetched(store: Store, user: Callable[..., dict[str, str]]) -> None:
    with package_index(PUBLIC) as index:
        found = resolve(wish("torch==2.5.1"), store, user(index.url))
    assert list(found) == ["filelock", "torch"]
    assert found["torch"] == Wheel(
        name="torch",
        version="2.5.1",
        file=TORCH,
        sha256=hashlib.sha256(PUBLIC[TORCH]).hexdigest(),
        size=len(PUBLIC[TORCH]),
        index="default",
        path=content_path(PUBLIC[TORCH], TORCH),
    )
    assert found["filelock"].version == "3.0"
    assert all(store.has(wheel.sha256, wheel.size) for wheel in found.values())
    assert newest_date(found.values(), store) == 1704067200


def test_a_lock_is_the_same_from_a_mirror_from_html_pages_and_from_a_folder(tmp_path: Path, user: Callable[..., dict[str, str]]) -> None:
    asked = wish("torch==2.5.1")
    elsewhere = package_index(PUBLIC, json_pages=False, place=lambda body, file: f"mirror/{file}")
    with package_index(PUBLIC) as index, elsewhere as mirror:
        folder = write_wheels(tmp_path / "wheels", {FILELOCK: PUBLIC[FILELOCK]})
        locks = [
            resolve(asked, Store(tmp_path / "a"), user(index.url)),
            resolve(asked, Store(tmp_path / "b"), user(mirror.url)),
            resolve(asked, Store(tmp_path / "c"), user(index.url, UV_FIND_LINKS=str(folder))),
            resolve(asked, Store(tmp_path / "d"), user(index.url.replace("http://", "http://user:secret@"))),
        ]
    assert all(lock == locks[0] for lock in locks)
    text = str(locks[0])
    assert not any(part in text for part in ("127.0.0.1", str(tmp_path), "secret"))


def test_pins_of_an_older_lock_are_kept_until_upgraded(store: Store, user: Callable[..., dict[str, str]]) -> None:
    with package_index(PUBLIC) as index:
        old = resolve(wish("filelock<3"), store, user(index.url))
        assert old["filelock"].version == "2.0"
        kept = resolve(wish("filelock"), store, user(index.url), keep=tuple(old.values()))
        assert kept == old
        assert resolve(wish("filelock"), store, user(index.url))["filelock"].version == "3.0"
        assert resolve(wish("filelock>2"), store, user(index.url), keep=tuple(old.values()))["filelock"].version == "3.0"


def test_settings_that_would_change_the_choice_do_not(store: Store, tmp_path: Path, user: Callable[..., dict[str, str]]) -> None:
    (tmp_path / "held.txt").write_text("filelock<3\n")
    held = str(tmp_path / "held.txt")
    with package_index(PUBLIC) as index:
        environ = user(index.url, UV_CONSTRAINT=held, PIP_CONSTRAINT=held, UV_RESOLUTION="lowest", UV_TORCH_BACKEND="cu121")
        assert resolve(wish("filelock"), store, environ)["filelock"].version == "3.0"


def test_the_wheel_that_suits_the_target_best_is_chosen(store: Store, user: Callable[..., dict[str, str]]) -> None:
    names = [
        "any",
        "cp311-manylinux_2_28_x86_64",
        "cp311-manylinux_2_39_x86_64",
        "cp310-manylinux_2_28_x86_64",
        "cp311-manylinux_2_17_aarch64",
    ]
    files = [f"p-1-{'py3-none-any' if n == 'any' else n.split('-')[0] + '-' + n}.whl" for n in names]
    with package_index({file: make_wheel(file) for file in files}) as index:
        assert resolve(wish("p"), store, user(index.url))["p"].file == files[1]
        assert resolve(wish("p", glibc=(2, 39)), store, user(index.url))["p"].file == files[2]
        assert resolve(wish("p", glibc=(2, 27)), store, user(index.url))["p"].file == files[0]
        assert resolve(wish("p", platform="linux/arm64"), store, user(index.url))["p"].file == files[4]


def test_constraints_and_requirement_files_count(store: Store, tmp_path: Path, user: Callable[..., dict[str, str]]) -> None:
    (tmp_path / "requirements.txt").write_text("filelock\n")
    with package_index(PUBLIC) as index:
        asked = wish(requirement_files=(tmp_path / "requirements.txt",), constraints=("filelock<3",))
        assert resolve(asked, store, user(index.url))["filelock"].version == "2.0"


def test_hashes_of_a_requirement_file_hold(store: Store, tmp_path: Path, user: Callable[..., dict[str, str]]) -> None:
    file = tmp_path / "requirements.txt"
    with package_index(PUBLIC) as index:
        file.write_text(f"filelock==3.0 \\\n  --hash=sha256:{hashlib.sha256(PUBLIC[FILELOCK]).hexdigest()}\n")
        resolve(wish(requirement_files=(file,)), store, user(index.url))
        file.write_text(f"filelock==3.0 --hash=sha256:{'0' * 64}\n")
        (finding,) = refusal(wish(requirement_files=(file,)), store, user(index.url), Exit.FILE)
    assert finding.id == "file-changed-upstream"


# PyTorch's own index


@pytest.mark.parametrize("hashes", [True, False])
def test_the_torch_family_and_nothing_else_comes_from_pytorch_s_index(
    store: Store, user: Callable[..., dict[str, str]], hashes: bool
) -> None:
    trap = "filelock-9.0-py3-none-any.whl"
    with package_index(PUBLIC) as index:
        add_pytorch(index, "whl/cu121", {**CU121, trap: make_wheel(trap)}, hashes=hashes)
        environ = user(index.url, ENVLOCK_PYTORCH_INDEX=index.url)
        found = resolve(wish("torch==2.5.1+cu121", "timm", **FROM_PYTORCH), store, environ)
        assert {name: (w.version, w.index) for name, w in found.items()} == {
            "filelock": ("3.0", "default"),
            "timm": ("1.0", "default"),
            "torch": ("2.5.1+cu121", "pytorch"),
            "torchvision": ("0.20.1+cu121", "pytorch"),
        }
        assert found["torch"].path == f"whl/cu121/{TORCH_CU121}"
        assert found["torch"].sha256 == hashlib.sha256(CU121[TORCH_CU121]).hexdigest()
        store.discard(found["torch"].sha256)
        fetch(found["torch"], store, environ)


def test_a_sister_package_that_is_held_to_the_build_is_found_though_only_others_ask_for_it(
    store: Store, user: Callable[..., dict[str, str]]
) -> None:
    with package_index(PUBLIC) as index:
        add_pytorch(index, "whl/cu121", CU121, hashes=True)
        asked = wish("torch==2.5.1+cu121", "timm", constraints=("torchvision==0.20.1+cu121",), **FROM_PYTORCH)
        found = resolve(asked, store, user(index.url, ENVLOCK_PYTORCH_INDEX=index.url))
    assert found["torchvision"].version == "0.20.1+cu121"


def test_an_unreachable_pytorch_index_is_said_and_find_links_makes_it_unneeded(
    store: Store, tmp_path: Path, user: Callable[..., dict[str, str]]
) -> None:
    asked = wish("torch==2.5.1+cu121", **FROM_PYTORCH)
    with package_index(PUBLIC) as index:
        (finding,) = refusal(asked, store, user(index.url, ENVLOCK_PYTORCH_INDEX="http://127.0.0.1:9"), Exit.FILE)
        assert finding.id == "unreachable"
        assert "torch==2.5.1+cu121 is published only there" in finding.why
        assert "find-links" in finding.hint
        folder = write_wheels(tmp_path / "wheels", CU121)
        environ = user(index.url, ENVLOCK_PYTORCH_INDEX="http://127.0.0.1:9", PIP_FIND_LINKS=str(folder))
        found = resolve(asked, store, environ)
    assert (found["torch"].index, found["torch"].path) == ("pytorch", f"whl/cu121/{TORCH_CU121}")


def test_another_build_of_torch_in_a_folder_is_not_taken_for_the_one_that_was_asked_for(
    store: Store, tmp_path: Path, user: Callable[..., dict[str, str]]
) -> None:
    file = "torch-2.5.1+cpu-cp311-cp311-linux_x86_64.whl"
    folder = write_wheels(tmp_path / "wheels", {file: make_wheel(file), **CU121})
    with package_index(PUBLIC) as index:
        found = resolve(wish("torch==2.5.1"), store, user(index.url, PIP_FIND_LINKS=str(folder)))
        assert found["torch"].version == "2.5.1"
        found = resolve(wish("torch==2.5.1+cpu"), store, user(index.url, PIP_FIND_LINKS=str(folder)))
        assert found["torch"].version == "2.5.1+cpu"


# refusals


def test_packages_without_a_wheel_are_all_named_with_what_was_published(store: Store, user: Callable[..., dict[str, str]]) -> None:
    old = "old-1.0-cp36-cp36m-manylinux1_x86_64.whl"
    with package_index({**PUBLIC, old: make_wheel(old)}, {"flash-attn-2.7.2.post1.tar.gz": b"source"}) as index:
        found = refusal(wish("filelock", "flash-attn==2.7.2.post1", "old"), store, user(index.url), Exit.NO_STACK)
    assert [(finding.id, finding.where) for finding in found] == [("needs-compiling", "flash-attn"), ("needs-compiling", "old")]
    assert "flash-attn 2.7.2.post1 has no wheel for Python 3.11" in found[0].what
    assert "the source flash-attn-2.7.2.post1.tar.gz" in found[0].why
    assert "wheels for cp36 on manylinux" in found[1].why
    assert all("find-links" in finding.hint for finding in found)


def test_a_conflict_keeps_uv_s_reasoning(store: Store, user: Callable[..., dict[str, str]]) -> None:
    with package_index(PUBLIC) as index:
        (finding,) = refusal(wish("torchvision==0.20.1", "torch<2.5"), store, user(index.url), Exit.NO_STACK)
        assert finding.id == "package-conflict"
        assert "torchvision depend on torch==2.5.1" in finding.why
        (finding,) = refusal(wish("filelok"), store, user(index.url), Exit.NO_STACK)
        assert "filelok was not found" in finding.why
        assert "spelt" in finding.hint


@pytest.mark.parametrize(
    ("answer", "id_"), [(Answer(status=401), "access-denied"), (Answer(status=429), "rate-limited"), (Answer(status=500), "unreachable")]
)
def test_an_index_that_refuses_is_named_as_what_it_is(store: Store, user: Callable[..., dict[str, str]], answer: Answer, id_: str) -> None:
    with package_index(PUBLIC) as index:
        index.routes["/simple/torch/"] = answer
        url = index.url.replace("http://", "http://user:pass-w0rd@")
        (finding,) = refusal(wish("torch"), store, user(url), Exit.FILE)
    assert finding.id == id_
    assert "pass-w0rd" not in str(finding)


def test_bytes_that_differ_from_the_index_s_hash_are_refused(store: Store, user: Callable[..., dict[str, str]]) -> None:
    with package_index(PUBLIC) as index:
        body, path = PUBLIC[FILELOCK], "/" + content_path(PUBLIC[FILELOCK], FILELOCK)

        def swap_later(request: Request) -> Answer:
            return Answer(body if "uv" in request.headers["user-agent"] else body[::-1])

        index.routes[path] = swap_later
        (finding,) = refusal(wish("filelock"), store, user(index.url), Exit.FILE)
    assert finding.id == "file-changed-upstream"


# the user's settings


def test_indexes_of_the_user_are_named_in_the_lock_and_found_again(
    store: Store, tmp_path: Path, user: Callable[..., dict[str, str]]
) -> None:
    own, plain = "ours-1.0-py3-none-any.whl", "plain-1.0-py3-none-any.whl"
    with package_index(PUBLIC) as index, package_index({own: make_wheel(own)}) as named, package_index({plain: make_wheel(plain)}) as extra:
        config = tmp_path / "uv.toml"
        config.write_text(f'[[index]]\nname = "company"\nurl = "{named.url}/simple"\n')
        environ = user(index.url, UV_CONFIG_FILE=str(config), PIP_EXTRA_INDEX_URL=f"{extra.url}/simple", PIP_CONFIG_FILE=os.devnull)
        found = resolve(wish("ours", "plain", "filelock"), store, environ)
        assert {name: (wheel.index, wheel.path is None) for name, wheel in found.items()} == {
            "filelock": ("default", False),
            "ours": ("company", True),
            "plain": ("local", True),
        }
        for wheel in found.values():
            store.discard(wheel.sha256)
            fetch(wheel, store, environ)
            assert store.has(wheel.sha256)


def test_pip_s_extra_indexes_are_equals_and_absent_folders_are_passed_over(
    store: Store, tmp_path: Path, user: Callable[..., dict[str, str]]
) -> None:
    partial = tmp_path / "partial" / "simple" / "filelock"
    file = "filelock-2.0-py3-none-any.whl"
    write_wheels(partial, {file: PUBLIC[file]})
    (partial / "index.html").write_text(f'<a href="{file}">{file}</a>')
    extra = f"file://{tmp_path}/absent/simple {partial.parent.as_uri()}"
    with package_index(PUBLIC) as index:
        environ = user(index.url, PIP_EXTRA_INDEX_URL=extra, PIP_FIND_LINKS="/absent/wheels")
        assert resolve(wish("filelock"), store, environ)["filelock"].version == "3.0"
        old = resolve(wish("filelock<3"), store, environ)["filelock"]
    assert (old.index, old.path) == ("default", content_path(PUBLIC[file], file))


def test_credentials_reach_pages_and_files_and_nothing_else(store: Store, user: Callable[..., dict[str, str]]) -> None:
    with package_index(PUBLIC) as index:
        for path, route in list(index.routes.items()):

            def guarded(request: Request, route: object = route) -> Answer:
                if request.headers.get("authorization") != "Basic dXNlcjpzZWNyZXQ=":
                    return Answer(status=401)
                return route(request) if callable(route) else route  # type: ignore[return-value]

            index.routes[path] = guarded
        environ = user(index.url.replace("http://", "http://user:secret@"))
        found = resolve(wish("filelock"), store, environ)
        store.discard(found["filelock"].sha256)
        fetch(found["filelock"], store, environ)
        assert "secret" not in str(found)
        assert "secret" not in repr(read_indexes(Uv.find(), environ))


# where a locked wheel is found again


def locked(body: bytes, file: str, index: str, path: str | None = None) -> Wheel:
    name, version = file.split("-")[:2]
    return Wheel(name=name, version=version, file=file, sha256=hashlib.sha256(body).hexdigest(), size=len(body), index=index, path=path)


def test_a_folder_comes_first_then_the_index_then_the_path(tmp_path: Path, user: Callable[..., dict[str, str]]) -> None:
    body = PUBLIC[FILELOCK]
    path = content_path(body, FILELOCK)
    wheel = locked(body, FILELOCK, "default", path)
    folder = write_wheels(tmp_path / "wheels", {FILELOCK: body})
    with package_index(PUBLIC) as index:
        environ = user(index.url, UV_FIND_LINKS=str(folder))
        assert sources(wheel, environ) == [str(folder / FILELOCK), f"{index.url}/{path}"]


def test_a_delisted_file_is_found_by_its_path(store: Store, user: Callable[..., dict[str, str]]) -> None:
    wheel = locked(PUBLIC[FILELOCK], FILELOCK, "default", content_path(PUBLIC[FILELOCK], FILELOCK))
    pip = "pip-25.0-py3-none-any.whl"
    with package_index({**PUBLIC, pip: make_wheel(pip)}) as index:
        index.routes["/simple/filelock/"] = Answer(status=404)
        fetch(wheel, store, user(index.url))
    assert store.has(wheel.sha256)


def test_a_wheel_of_an_index_that_is_not_known_here_says_so(store: Store, user: Callable[..., dict[str, str]]) -> None:
    wheel = locked(PUBLIC[FILELOCK], FILELOCK, "company")
    with package_index(PUBLIC) as index, pytest.raises(EnvlockError) as caught:
        fetch(wheel, store, user(index.url))
    (finding,) = caught.value.findings
    assert finding.id == "file-gone"
    assert "index called company" in finding.why


# the registries that this host is set up for


@pytest.mark.network
def test_small_packages_from_the_host_s_own_indexes(store: Store) -> None:
    asked = wish("numpy", "safetensors", "jinja2")
    found = resolve_wheels(asked, store, Silent())
    assert [wheel.name for wheel in found] == ["jinja2", "markupsafe", "numpy", "safetensors"]
    for wheel in found:
        body = store.path(wheel.sha256).read_bytes()
        assert (wheel.index, wheel.size) == ("default", len(body))
        assert wheel.path == content_path(body, wheel.file)
    assert resolve_wheels(asked, store, Silent(), keep=found) == found


@pytest.mark.network
def test_a_wheel_that_is_no_longer_listed_is_found_by_its_path(store: Store) -> None:
    (wheel,) = resolve_wheels(wish("six==1.16.0"), store, Silent(), environ={**os.environ, "PIP_CONFIG_FILE": os.devnull})
    store.discard(wheel.sha256)
    renamed = wheel.model_copy(update={"file": "six-0-py3-none-any.whl"})
    environ = {**os.environ, "PIP_CONFIG_FILE": os.devnull}
    fetch(renamed, store, environ)
    assert store.has(wheel.sha256)


@pytest.mark.network
def test_torch_for_the_cpu_comes_from_a_folder_of_this_host(store: Store) -> None:
    asked = wish("torch==2.13.0+cpu", torch_index="pytorch", torch_index_path="whl/cpu")
    if not any((folder / "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl").is_file() for folder in read_indexes(Uv.find()).folders):
        pytest.skip("no find-links folder of this host has torch 2.13.0+cpu")
    found = {wheel.name: wheel for wheel in resolve_wheels(asked, store, Silent())}
    assert (found["torch"].index, found["torch"].path) == ("pytorch", f"whl/cpu/{found['torch'].file}")
    assert {wheel.index for name, wheel in found.items() if name != "torch"} == {"default"}
