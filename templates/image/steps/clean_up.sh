# Take out what installing packages leaves behind and no two runs leave alike; written from envlock/layers/volatile.yaml.
set -eu
if [ -d /var/log/apt ]; then find /var/log/apt -mindepth 1 -maxdepth 1 -name '*' -exec rm -rf {} +; fi
rm -rf /var/log/dpkg.log
rm -rf /var/log/alternatives.log
rm -rf /var/log/bootstrap.log
rm -rf /var/log/fontconfig.log
if [ -d /var/lib/apt/lists ]; then find /var/lib/apt/lists -mindepth 1 -maxdepth 1 -name '*' -exec rm -rf {} +; fi
if [ -d /var/cache/apt/archives ]; then find /var/cache/apt/archives -mindepth 1 -maxdepth 1 -name '*' -exec rm -rf {} +; fi
if [ -d /var/cache/apt ]; then find /var/cache/apt -mindepth 1 -maxdepth 1 -name '*.bin' -exec rm -rf {} +; fi
rm -rf /var/cache/ldconfig/aux-cache
if [ -d /var/cache/fontconfig ]; then find /var/cache/fontconfig -mindepth 1 -maxdepth 1 -name '*' -exec rm -rf {} +; fi
if [ -d /var/cache/man ]; then find /var/cache/man -mindepth 1 -maxdepth 1 -name '*' -exec rm -rf {} +; fi
rm -rf /var/lib/systemd/catalog/database
rm -rf /var/lib/systemd/random-seed
if [ -d /var/lib/dpkg ]; then find /var/lib/dpkg -mindepth 1 -maxdepth 1 -name '*-old' -exec rm -rf {} +; fi
if [ -d /var/cache/debconf ]; then find /var/cache/debconf -mindepth 1 -maxdepth 1 -name '*-old' -exec rm -rf {} +; fi
rm -rf /etc/passwd-
rm -rf /etc/group-
rm -rf /etc/shadow-
rm -rf /etc/gshadow-
rm -rf /etc/subuid-
rm -rf /etc/subgid-
if [ -f /etc/machine-id ]; then : > /etc/machine-id; fi
rm -rf /var/lib/dbus/machine-id
if [ -d /etc/ssh ]; then find /etc/ssh -mindepth 1 -maxdepth 1 -name 'ssh_host_*' -exec rm -rf {} +; fi
rm -rf /root/.wget-hsts
if [ -d /tmp ]; then find /tmp -mindepth 1 -maxdepth 1 -name '*' -exec rm -rf {} +; fi
if [ -d /var/tmp ]; then find /var/tmp -mindepth 1 -maxdepth 1 -name '*' -exec rm -rf {} +; fi
rm -rf /run/mmdebstrap
