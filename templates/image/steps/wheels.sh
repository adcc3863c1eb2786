# Install the wheels of one list into /opt/venv, with the `installer` wheel that lies in the context, and compile their modules.
#   sh wheels.sh VERSION LIST
set -eu
steps=$(cd "$(dirname "$0")" && pwd)
cd "$steps/.."
exec sh "$steps/python.sh" "$1" "$steps/install_wheels.py" "$1" installer/*.whl "$2"
