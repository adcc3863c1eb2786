# Install the Debian packages that lie in debs/ with the base's own apt, and take out what no two runs leave alike.
#   sh apt.sh SECONDS
# SECONDS since 1970 is the date that packages' scripts see as now, where they ask for it.
set -eu
umask 022
if [ "$(date +%s)" -lt "$1" ]; then
    echo "the clock of this host is behind: it says $(date), and a package is newer" >&2
    exit 1
fi
steps=$(cd "$(dirname "$0")" && pwd)
debs=$(cd "$steps/../debs" && pwd)
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
policy=/usr/sbin/policy-rc.d
made=
if [ ! -e $policy ]; then
    printf '#!/bin/sh\nexit 101\n' > $policy
    chmod 755 $policy
    made=yes
fi
env -i PATH="$PATH" HOME=/root TZ=UTC LC_ALL=C.UTF-8 PYTHONHASHSEED=0 SOURCE_DATE_EPOCH="$1" \
    DEBIAN_FRONTEND=noninteractive DEBCONF_NONINTERACTIVE_SEEN=true \
    apt-get --quiet --yes --no-install-recommends --allow-downgrades --allow-change-held-packages \
    -o APT::Sandbox::User=root -o Dpkg::Use-Pty=0 -o Dpkg::Options::=--force-unsafe-io \
    -o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold install "$debs"/*.deb
[ -z "$made" ] || rm $policy
sh "$steps/clean_up.sh"
