# Make the virtual environment /opt/venv with the base's own Python, and take out what names the command line.
#   sh venv.sh VERSION
set -eu
umask 022
env -i PATH="$PATH" LC_ALL=C.UTF-8 PYTHONHASHSEED=0 "python$1" -s -B -m venv --without-pip --symlinks /opt/venv
sed -i '/^command = /d' /opt/venv/pyvenv.cfg
