# shellcheck shell=sh
# What the scripts beside this file share: the virtual environment, Debian packages that are missing, messages.
# A script sets `root` (the checkout) and sources this; narration goes to stderr, results to stdout.
#   ENVLOCK_PYTHON   the Python to use, where the first new enough on PATH is not the right one
#   ENVLOCK_STATE    where logs and the private engine's images go; .envlock in the checkout where it is not set

: "${root:?set root to the checkout before sourcing setup.sh}"
PATH=$PATH:/usr/sbin:/sbin
venv=$root/.venv
state=${ENVLOCK_STATE:-$root/.envlock}
case $state in /*) ;; *) state=$PWD/$state ;; esac
missing=

# The build of torch that the tests of the self-test import; the same release as in examples/cpu.yaml.
test_torch=2.13.0+cpu
torch_index=https://download.pytorch.org/whl/cpu

say() { printf '%s\n' "$*" >&2; }

phase() { printf '\n== %s\n' "$*" >&2; }

# not_ready WHAT HINT: this host lacks something; exit 5, as envlock itself does.
not_ready() {
    say "error: $1"
    say "  hint: $2"
    exit 5
}

need_command() { command -v "$1" >/dev/null 2>&1 || missing="$missing $2"; }

need_file() { [ -e "$1" ] || missing="$missing $2"; }

is_root() { [ "$(id -u)" -eq 0 ]; }

# Python 3.11 or newer: ENVLOCK_PYTHON where it is set, else the first that PATH has. Sets `python`.
find_python() {
    for candidate in ${ENVLOCK_PYTHON:+"$ENVLOCK_PYTHON"} python3 python3.14 python3.13 python3.12 python3.11; do
        python=$("$candidate" -c 'import sys; sys.version_info >= (3, 11) and print(sys.executable)' 2>/dev/null) || continue
        [ -z "$python" ] || return 0
    done
    not_ready "no Python 3.11 or newer on PATH" "install python3 (Debian 12 and newer have it), or name one: ENVLOCK_PYTHON=/path/to/python3.12"
}

# What a build needs beside Python. An ordinary user bootstraps in a user namespace, which takes uidmap.
need_build_tools() {
    need_command mmdebstrap mmdebstrap
    need_file /usr/share/keyrings/debian-archive-keyring.gpg debian-archive-keyring
    need_file /etc/ssl/certs/ca-certificates.crt ca-certificates
    is_root || need_command newuidmap uidmap
}

need_venv_module() {
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        missing="$missing $("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')"
}

# Installs what need_* found missing; does nothing when nothing is.
install_missing() {
    [ -n "$missing" ] || return 0
    install="apt-get install --no-install-recommends$missing"
    if ! command -v apt-get >/dev/null 2>&1; then
        not_ready "this system lacks:$missing (Debian's names), and has no apt-get to install them" \
            "install what your system calls these packages, then run this again"
    fi
    is_root || not_ready "these Debian packages are missing:$missing" "run \`sudo $install\`, then run this again"
    say "installing$missing"
    mkdir -p "$state"
    # shellcheck disable=SC2086 # a list of package names
    if ! { apt_get update && apt_get install -y --no-install-recommends $missing; } >"$state/apt.log" 2>&1; then
        tail -n 15 "$state/apt.log" >&2
        not_ready "apt-get could not install$missing (the end of its output is above)" "run \`apt-get update && $install\`, then run this again"
    fi
    missing=
}

apt_get() { DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 "$@" </dev/null; }

# make_venv PURPOSE: .venv with envlock, to `use` or to `test` it; at once when it already is as pyproject.toml asks.
make_venv() {
    case $root in
    *:*) not_ready "the checkout's path has a colon, which PATH cannot hold: $root" "move the checkout" ;;
    esac
    wish="$python $root $(cksum <"$root/pyproject.toml") $(cksum <"$root/scripts/setup.sh")"
    stamp=$venv/envlock.stamp
    if [ -x "$venv/bin/envlock" ]; then
        # What is set up to test envlock is set up to use it.
        case "$(cat "$stamp" 2>/dev/null)" in
        "$1 $wish" | "test $wish") return 0 ;;
        esac
    fi
    say "setting up $venv for $1"
    mkdir -p "$state"
    if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
        "$python" -m venv --clear "$venv"
    fi
    case $1 in
    use) install_python -e "$root" ;;
    test)
        # The CPU build by name: a plain `torch` would bring CUDA's libraries, some GB that no test uses.
        install_python -e "${root}[dev,host]" "torch==$test_torch" numpy || {
            say "trying again with PyTorch's own index"
            install_python -e "${root}[dev,host]" "torch==$test_torch" numpy --extra-index-url "$torch_index"
        }
        ;;
    esac || not_ready "pip could not install envlock (its errors are above; all it said: $state/pip.log)" \
        "pip's index and find-links come from your pip configuration and PIP_* variables; see that they can be reached"
    printf '%s\n' "$1 $wish" >"$stamp"
}

install_python() {
    "$venv/bin/python" -m pip install --disable-pip-version-check --no-input --progress-bar off "$@" >"$state/pip.log" 2>&1 </dev/null || {
        grep -iE 'error' "$state/pip.log" | tail -n 8 >&2
        return 1
    }
}

# One setup at a time in one checkout: the second waits, then finds everything done.
set_up() {
    [ "$(uname -s)" = Linux ] || not_ready "envlock builds images on Linux; this is $(uname -s)" "use a Linux host or a virtual machine"
    exec 8<"$root/scripts/setup.sh"
    flock 8
    find_python
    need_venv_module
    need_build_tools
    [ "$1" != test ] || need_test_tools
    install_missing
    make_venv "$1"
    exec 8>&-
}

need_test_tools() {
    need_command git git
    need_command newuidmap uidmap
    need_command rootlesskit rootlesskit
    need_command docker-registry docker-registry
    need_command skopeo skopeo
    need_command shellcheck shellcheck
}
