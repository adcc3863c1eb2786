# Run one of these programs with the base's own Python, and with nothing of the environment but PATH.
#   sh python.sh VERSION PROGRAM [ARGUMENT ...]
set -eu
version=$1
shift
umask 022
exec env -i PATH="$PATH" LC_ALL=C.UTF-8 PYTHONHASHSEED=0 "python$version" -s -S -B -W ignore "$@"
