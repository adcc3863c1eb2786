"""The scripts on machines that are lacking: what they install, what they say, what they leave alone.

Each test copies the scripts into a checkout of its own and puts stand-ins before the programs that would change the machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from envlock.spec import read_spec

CHECKOUT = Path(__file__).parents[2]
SCRIPTS = ("engine", "private-dockerd", "quickstart", "test")

# A Python whose venv and pip only write down that they were called.
PYTHON = """#!/bin/sh
case "$*" in
*sys.executable*) echo "$0" ;;
*"-m venv --clear"*) mkdir -p "$4/bin" && cp "$0" "$4/bin/python" && cp "$0" "$4/bin/envlock" ;;
*"-m pip --version"*) [ -x "$0" ] ;;
*"-m pip install"*) echo "pip $*" >>"$CALLS" ;;
esac
"""


class Machine:
    """A checkout with the scripts, and a folder of programs that comes first on PATH."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "a checkout"
        self.programs = folder / "programs"
        self.calls_file = folder / "calls"
        self.calls_file.touch()
        (self.root / "lockfiles").mkdir(parents=True)
        self.programs.mkdir()
        shutil.copytree(CHECKOUT / "scripts", self.root / "scripts")
        for name in ("pyproject.toml", "lockfiles/cpu.lock.yaml"):
            (self.root / name).write_text(name)

    def program(self, name: str, text: str) -> None:
        self.write(self.programs / name, text)

    def write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    @property
    def calls(self) -> list[str]:
        return self.calls_file.read_text().splitlines()

    def run(self, *command: str | Path, path: str | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("DOCKER_", "ENVLOCK_"))}
        kept["PATH"] = f"{self.programs}:{os.environ['PATH'] if path is None else path}"
        kept["CALLS"] = str(self.calls_file)
        return subprocess.run(
            command, cwd=self.root, env=kept | environment, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60
        )

    def shell(self, text: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run `text` with setup.sh sourced."""
        return self.run("sh", "-euc", f"root=$PWD; . scripts/setup.sh; {text}", **environment)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path)
    machine.program("python3", PYTHON)
    for name in ("mmdebstrap", "newuidmap", "git", "skopeo", "docker-registry", "shellcheck", "dockerd"):
        machine.program(name, "#!/bin/sh\n")
    machine.program("apt-get", '#!/bin/sh\necho "apt-get $*" >>"$CALLS"\n')
    return machine


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed; scripts/test installs it")
def test_shellcheck_finds_nothing() -> None:
    files = [f"scripts/{name}" for name in (*SCRIPTS, "setup.sh")] + [".ci/run"]
    found = subprocess.run(["shellcheck", "-x", *files], cwd=CHECKOUT, capture_output=True, text=True, timeout=60)
    assert found.stdout == ""


def test_setting_up_twice_installs_once(machine: Machine) -> None:
    for _ in range(2):
        assert machine.shell("set_up use").returncode == 0
    assert [call.partition(" install")[0] for call in machine.calls if call.startswith("pip")] == ["pip -m pip"]


def test_a_changed_pyproject_is_installed_again(machine: Machine) -> None:
    machine.shell("set_up use")
    (machine.root / "pyproject.toml").write_text("changed")
    machine.shell("set_up use")
    assert len([call for call in machine.calls if call.startswith("pip")]) == 2


def test_what_is_set_up_to_test_can_be_used(machine: Machine) -> None:
    machine.shell("set_up test")
    before = machine.calls
    assert machine.shell("set_up use").returncode == 0
    assert machine.calls == before
    assert "[dev,host]" in before[-1]


def test_nothing_missing_means_no_apt(machine: Machine) -> None:
    machine.shell("install_missing")
    assert machine.calls == []


def test_root_installs_what_is_missing(machine: Machine) -> None:
    machine.program("id", "#!/bin/sh\necho 0\n")
    done = machine.shell("need_command no-such-program some-package; need_command sh dash; install_missing")
    assert done.returncode == 0, done.stderr
    assert [call.split()[-1] for call in machine.calls] == ["update", "some-package"]


def test_an_ordinary_user_is_told_the_command(machine: Machine) -> None:
    machine.program("id", "#!/bin/sh\necho 1000\n")
    done = machine.shell("need_command no-such-program some-package; install_missing")
    assert done.returncode == 5
    assert "`sudo apt-get install --no-install-recommends some-package`" in done.stderr
    assert machine.calls == []


def test_another_system_is_told_the_names(machine: Machine, tmp_path: Path) -> None:
    (machine.programs / "apt-get").unlink()
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("sh", "uname", "flock", "mkdir", "id"):
        (bare / name).symlink_to(shutil.which(name) or name)
    text = "root=$PWD; . scripts/setup.sh; PATH=$BARE; need_command mmdebstrap mmdebstrap; install_missing"
    done = machine.run("sh", "-euc", text, BARE=str(bare))
    assert done.returncode == 5
    assert "lacks: mmdebstrap" in done.stderr


@pytest.mark.parametrize(("program", "text", "words"), [("uname", "echo Darwin", "Linux"), ("python3", "exit 1", "Python 3.11")])
def test_a_system_that_cannot_be_set_up_is_exit_5(machine: Machine, program: str, text: str, words: str) -> None:
    for name in ("python3", "python3.11", "python3.12", "python3.13", "python3.14"):
        machine.program(name, "#!/bin/sh\nexit 1\n" if program == "python3" else PYTHON)
    machine.program(program, f"#!/bin/sh\n{text}\n")
    done = machine.shell("set_up use")
    assert done.returncode == 5
    assert words in done.stderr


def test_pip_that_fails_says_where_its_output_is(machine: Machine) -> None:
    machine.program("python3", PYTHON.replace('echo "pip $*" >>"$CALLS"', "echo ERROR: no route; exit 1"))
    done = machine.shell("set_up use")
    assert done.returncode == 5
    assert "ERROR: no route" in done.stderr
    assert "pip.log" in done.stderr
    assert not (machine.root / ".venv/envlock.stamp").exists()


def test_a_process_that_took_the_number_is_left_alone(machine: Machine) -> None:
    other = subprocess.Popen(["sleep", "60"])
    try:
        machine.write(machine.root / ".envlock/engine/pid", f"{other.pid} 1\n")
        assert machine.run("scripts/engine", "running").returncode == 1
        assert machine.run("scripts/engine", "stop").returncode == 0
        assert other.poll() is None
        assert not (machine.root / ".envlock/engine/pid").exists()
    finally:
        other.kill()
        other.wait()


def test_stopping_keeps_images_unless_told_to_purge(machine: Machine) -> None:
    images = machine.root / ".envlock/engine/data"
    images.mkdir(parents=True)
    machine.run("scripts/engine", "stop")
    assert images.exists()
    machine.run("scripts/engine", "stop", "--purge")
    assert not images.exists()


@pytest.mark.parametrize(
    ("state", "socket"),
    [
        ("/short", "unix:///short/engine/run/docker.sock"),
        ("/with a blank", "unix:///run/envlock-"),
        (f"/{'deep' * 25}", "unix:///run/envlock-"),
    ],
)
def test_the_socket_has_a_path_that_every_client_can_use(machine: Machine, state: str, socket: str) -> None:
    assert socket in machine.run("scripts/engine", "status", ENVLOCK_STATE=state).stderr


def test_an_engine_that_was_named_and_is_dead_is_not_replaced(machine: Machine) -> None:
    machine.program("python3", PYTHON.replace("esac", '"-") exit 1 ;;\nesac'))
    done = machine.run("scripts/engine", "start", DOCKER_HOST="unix:///nowhere.sock")
    assert done.returncode == 5
    assert "unix:///nowhere.sock" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("words", [(), ("restart",), ("start", "now"), ("stop", "--all")])
def test_the_engine_script_refuses_what_it_does_not_know(machine: Machine, words: tuple[str, ...]) -> None:
    assert machine.run("scripts/engine", *words).returncode == 2


# quickstart -------------------------------------------------------------------------------------------------------------

ENGINE = """#!/bin/sh
echo "engine $*" >>"$CALLS"
case $1 in
start) touch started; echo "export DOCKER_HOST=unix:///private.sock" ;;
running) [ -e started ] ;;
stop) rm -f started ;;
esac
"""

# Writes down its calls; `build` fails with BUILD_STATUS as long as the lock is the committed one.
ENVLOCK = """#!/bin/sh
echo "envlock $1 DOCKER_HOST=$DOCKER_HOST" >>"$CALLS"
case $1 in
lock) for last; do :; done
      case $*$LOCK in *--upgrade*|*moved) echo fresh >"$last" ;; esac ;;
build) grep -q fresh "$2" || exit "${BUILD_STATUS:-0}" ;;
verify) echo "the report"; exit "${VERIFY_STATUS:-0}" ;;
esac
"""


@pytest.fixture
def quick(machine: Machine) -> Machine:
    machine.program("python3", PYTHON)
    machine.write(machine.root / "scripts/engine", ENGINE)
    assert machine.shell("set_up use").returncode == 0
    machine.write(machine.root / ".venv/bin/envlock", ENVLOCK)
    machine.calls_file.write_text("")
    return machine


def steps(machine: Machine) -> list[str]:
    return [" ".join(call.split()[:2]) for call in machine.calls if call != "engine running"]


def test_quickstart_locks_builds_verifies_and_stops_its_engine(quick: Machine) -> None:
    done = quick.run("scripts/quickstart")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "the report\n"
    assert steps(quick) == ["engine start", "envlock lock", "envlock build", "envlock verify", "engine stop"]
    assert "DOCKER_HOST=unix:///private.sock" in quick.calls[-4]
    assert (quick.root / ".envlock/quickstart/cpu.lock.yaml").read_text() == "lockfiles/cpu.lock.yaml"


def test_quickstart_locks_afresh_when_a_locked_file_is_gone(quick: Machine) -> None:
    done = quick.run("scripts/quickstart", BUILD_STATUS="6")
    assert done.returncode == 0, done.stderr
    assert steps(quick)[1:-1] == ["envlock lock", "envlock build", "envlock lock", "envlock build", "envlock verify"]
    assert "locking examples/cpu.yaml afresh" in done.stderr
    assert (quick.root / "lockfiles/cpu.lock.yaml").read_text() == "lockfiles/cpu.lock.yaml"


def test_quickstart_says_that_the_lock_moved(quick: Machine) -> None:
    assert "note: locked afresh" not in quick.run("scripts/quickstart").stderr
    assert "note: locked afresh" in quick.run("scripts/quickstart", LOCK="moved").stderr


@pytest.mark.parametrize("status", [5, 7])
def test_quickstart_passes_other_failures_on(quick: Machine, status: int) -> None:
    assert quick.run("scripts/quickstart", BUILD_STATUS=str(status)).returncode == status
    assert steps(quick) == ["engine start", "envlock lock", "envlock build", "engine stop"]


def test_quickstart_exits_as_verify_does(quick: Machine) -> None:
    assert quick.run("scripts/quickstart", VERIFY_STATUS="1").returncode == 1
    assert steps(quick)[-1] == "engine stop"


def test_quickstart_leaves_an_engine_alone_that_ran_before(quick: Machine) -> None:
    (quick.root / "started").touch()
    assert quick.run("scripts/quickstart").returncode == 0
    assert "engine stop" not in steps(quick)


# examples ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "cuda"), [("cpu", "cpu"), ("cuda", "12.4")])
def test_examples_are_good_specs(name: str, cuda: str) -> None:
    path = CHECKOUT / f"examples/{name}.yaml"
    assert read_spec(path).stack.cuda == cuda
    assert path.read_text().startswith("# yaml-language-server: $schema=")


def test_the_tests_use_the_torch_that_the_example_ships() -> None:
    torch = read_spec(CHECKOUT / "examples/cpu.yaml").stack.torch
    assert f"\ntest_torch={torch}+cpu\n" in (CHECKOUT / "scripts/setup.sh").read_text()
