"""Secrets sown wherever a user may keep them, each of its own; none comes out of the whole flow in anything that it writes or prints."""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tiny import Tiny, copied_store, envlock, remove_images

from envlock import lock as locks
from envlock.engine import Engine
from envlock.store import Store

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from loopback import Answer, Request, Server
from package_index import add_pytorch, html_page, make_wheel, package_index

pytestmark = pytest.mark.network

NAME = "envlock-secrets-test"
TORCH = "torch-2.5.1+cpu-cp311-cp311-linux_x86_64.whl"
INSTALLER = f"installer-{version('installer')}-py3-none-any.whl"
SPEC = f"""\
name: {NAME}
python: "3.11"
stack: {{torch: "2.5.1", cuda: cpu}}
packages: [alpha, beta, gamma, delta]
env: {{GREETING: hello}}
"""


def wheel(name: str) -> dict[str, bytes]:
    file = f"{name}-1.0-py3-none-any.whl"
    return {file: make_wheel(file)}


@dataclass
class Sown:
    """The secrets by where they were sown, and the variables of the user who has them."""

    secrets: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)

    def sow(self, where: str) -> str:
        self.secrets[where] = f"canary-{where}-{os.urandom(6).hex()}"
        return self.secrets[where]

    def found_in(self, raw: bytes) -> list[str]:
        """Where those come from that are in some bytes, also as URLs and HTTP headers have them."""
        pairs = {
            where: [secret, quote(secret), base64.b64encode(f"{where}:{secret}".encode()).decode()]
            for where, secret in self.secrets.items()
        }
        return [where for where, forms in pairs.items() if any(form.encode() in raw for form in forms)]


def guard(server: Server, user: str, password: str) -> str:
    """Let in only who has the password; the server's address with it."""
    expected = f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"
    for path, route in list(server.routes.items()):

        def guarded(request: Request, route: Any = route) -> Answer:
            if request.headers.get("authorization") != expected:
                return Answer(b"", 401, {"WWW-Authenticate": 'Basic realm="here"'})
            return route(request) if callable(route) else Answer(route) if isinstance(route, bytes) else route

        server.routes[path] = guarded
    return server.url.replace("://", f"://{user}:{password}@")


@contextmanager
def a_user(folder: Path) -> Iterator[Sown]:
    """Someone with a private index in each kind of configuration, a proxy, a registry, and tokens in the environment."""
    sown = Sown()
    home = folder / "home"
    home.mkdir()
    with ExitStack() as open_:
        default = open_.enter_context(package_index({**wheel("alpha"), INSTALLER: make_wheel(INSTALLER)}))
        by_netrc = open_.enter_context(package_index(wheel("beta")))
        lab = open_.enter_context(package_index(wheel("gamma")))
        links = open_.enter_context(package_index(wheel("delta")))
        pytorch = open_.enter_context(package_index({}))
        add_pytorch(pytorch, "whl/cpu", {TORCH: make_wheel(TORCH)}, hashes=True)
        (file,) = [path for path in links.routes if path.endswith(".whl")]
        token = sown.sow("links")
        links.routes["/links/"] = html_page([(file.rpartition("/")[2], f"{file}?token={token}", "")])
        (home / "pip.conf").write_text(
            f"[global]\nindex-url = {guard(default, 'pip', sown.sow('pip'))}/simple\n"
            f"extra-index-url = {guard_url(by_netrc, 'netrc', sown.sow('netrc'))}/simple\n"
            f"find-links = {links.url}/links/?token={token}\n"
        )
        (home / ".netrc").write_text(f"machine localhost login netrc password {sown.secrets['netrc']}\n")
        (home / ".netrc").chmod(0o600)
        guard(lab, "lab", sown.sow("lab"))
        auth = base64.b64encode(f"registry:{sown.sow('registry')}".encode()).decode()
        (home / "config.json").write_text(json.dumps({"auths": {"127.0.0.1:9": {"auth": auth}}}))
        sown.variables = {
            "HOME": str(home),
            "NETRC": str(home / ".netrc"),
            "DOCKER_CONFIG": str(home),
            "PIP_CONFIG_FILE": str(home / "pip.conf"),
            "PIP_FIND_LINKS": "",
            "UV_INDEX": f"lab={lab.url}/simple",
            "UV_INDEX_LAB_USERNAME": "lab",
            "UV_INDEX_LAB_PASSWORD": sown.secrets["lab"],
            "UV_NO_CONFIG": "1",
            "UV_CACHE_DIR": str(folder / "uv-cache"),
            "HTTPS_PROXY": f"http://proxy:{sown.sow('proxy')}@127.0.0.1:9",
            "NO_PROXY": "127.0.0.1,localhost",
            "ENVLOCK_PYTORCH_INDEX": guard(pytorch, "pytorch", sown.sow("pytorch")),
            "ENVLOCK_DEBIAN_SNAPSHOT": f"http://snapshot:{sown.sow('snapshot')}@127.0.0.1:9/{{archive}}/{{snapshot}}",
            **{name: sown.sow(name) for name in ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "WANDB_API_KEY", "MY_OWN")},
        }
        yield sown


def guard_url(server: Server, user: str, password: str) -> str:
    """As `guard`, for a client that finds the password itself, under another name of this host."""
    for path, page in list(server.routes.items()):
        if isinstance(page, Answer):
            server.routes[path] = replace(page, body=page.body.replace(b"127.0.0.1", b"localhost"))
    guard(server, user, password)
    return server.url.replace("127.0.0.1", "localhost")


def test_no_secret_comes_out_of_the_flow(tiny_session: Tiny, engine: Engine, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "spec.yaml").write_text(SPEC)
    store = copied_store(tiny_session.store, work / "store")
    with a_user(tmp_path) as sown:

        def run(*words: str | Path, status: int = 0) -> str:
            done = envlock("--verbose", *words, env=sown.variables, cwd=work)
            assert "Traceback" not in done.stderr, done.stderr
            assert done.returncode == status, done.stderr
            number = len(list(work.glob("*.said")))
            (work / f"{number}-{words[0]}.said").write_text(done.stdout + done.stderr)
            return done.stdout

        try:
            run("lock", "spec.yaml", "--store", "store")
            run("lock", "spec.yaml", "--check", "--store", "store", "--json")
            assert {"alpha", "beta", "gamma", "delta", "torch"} <= names_in(work / "spec.lock.yaml")
            for file in names_of_wheels(store, work / "spec.lock.yaml"):
                store.discard(file)
            run("fetch", "spec.lock.yaml", "--store", "store")
            run("render", "spec.lock.yaml", "-o", "context", "--store", "store")
            built = json.loads(run("build", "spec.lock.yaml", "--store", "store", "--json"))
            tag = f"{NAME}:latest"
            run(
                "verify",
                tag,
                "--gpus",
                "none",
                "--env",
                f"HF_TOKEN={sown.secrets['HF_TOKEN']}",
                "--group",
                "seeds",
                "--report",
                "report",
                status=8,
            )
            secret = f"HF_TOKEN={sown.secrets['HF_TOKEN']}"
            run("run", tag, "--env", secret, "-o", "ran", "--", "python", "-c", "open('/outputs/x', 'w').write('1')")
            run("pin", tag, "-o", "artifact", "--vendor", "wheels", "--store", "store")
            run("pin", "artifact", "--check")
            run("diff", "spec.lock.yaml", tag)
            (work / "inspected").write_text(json.dumps(engine._api.inspect_image(tag)) + json.dumps(engine._api.history(tag)))
            with (work / "saved.tar").open("wb") as saved:
                for piece in engine.save(built["image_digest"]):
                    saved.write(piece)
            refusals(work, sown, run)
        finally:
            remove_images(engine, NAME)
    leaks = {
        str(path.relative_to(work)): found
        for path in sorted(work.rglob("*"))
        if path.is_file() and (found := sown.found_in(path.read_bytes()))
    }
    assert leaks == {"secret.yaml": ["MY_OWN"], "requirements.txt": ["MY_OWN"], "image.yaml": ["MY_OWN"]}


def refusals(work: Path, sown: Sown, run: Any) -> None:
    """What goes wrong is told without them, too."""
    mine = sown.secrets["MY_OWN"]
    spec = "name: x\nstack: {torch: 2.5.1, cuda: cpu}\n"
    (work / "secret.yaml").write_text(
        f"{spec}packages: ['x @ git+https://me:{mine}@h.invalid/x?t={mine}', '--index-url https://{mine}@h']\n"
    )
    run("check", "secret.yaml", status=2)
    (work / "requirements.txt").write_text(f"--index-url https://{mine}@h.invalid/simple\ngit+https://me:{mine}@h.invalid/x\n")
    (work / "with.yaml").write_text(f"{spec}requirements: [requirements.txt]\n")
    run("lock", "with.yaml", "--store", "store", status=2)
    (work / "image.yaml").write_text(f"{spec}base: {{image: 'https://me:{mine}@h.invalid/x:1'}}\n")
    run("check", "image.yaml", status=2)
    (work / "registry.yaml").write_text(f"{spec}base: {{image: '127.0.0.1:9/team/base:1'}}\n")
    run("lock", "registry.yaml", "--store", "store", status=6)
    for name in ("PIP_INDEX_URL", "ENVLOCK_PYTORCH_INDEX"):
        before = sown.variables.get(name)
        for address in (
            "http://me:{}@127.0.0.1:9/simple",
            "https://me:{}@h.invalid/simple",
            "http://me:{}@h:99999999/simple",
            "http://[me:{}@/simple",
        ):
            sown.variables[name] = address.format(sown.secrets["pip"])
            (work / "other.yaml").write_text(SPEC)
            out = envlock("--verbose", "lock", "other.yaml", "--store", "store", env=sown.variables, cwd=work)
            assert out.returncode not in (0, 70), out.stderr
            (work / f"{name}-{len(address)}.said").write_text(out.stdout + out.stderr)
        sown.variables.pop(name)
        if before is not None:
            sown.variables[name] = before


def names_in(path: Path) -> set[str]:
    return {row.name for row in locks.read(path).lock.wheels}


def names_of_wheels(store: Store, path: Path) -> list[str]:
    return [row.sha256 for row in locks.read(path).lock.wheels]
