#!/usr/bin/env bash
# PostgreSQL's server from Debian's packages, for the store's tests. Needs root. Makes no cluster and starts nothing: the tests
# start throw-away ones of their own.
set -euo pipefail

if compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null; then
    exit 0
fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "install PostgreSQL, or set WHIPPLETREE_POSTGRES to the directory of initdb (this script needs root and apt-get)" >&2
    exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -q >/dev/null
apt-get install -yq --no-install-recommends postgresql-common >/dev/null
sed -i -E 's/^#?create_main_cluster *=.*/create_main_cluster = false/' /etc/postgresql-common/createcluster.conf
apt-get install -yq --no-install-recommends postgresql >/dev/null
