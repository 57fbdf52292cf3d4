#!/usr/bin/env bash
# Makes the Kubernetes tests' API server ready and prints its folder.
#   scripts/kube-binaries.sh PATH
# PATH is a folder with kube-apiserver and kube-controller-manager (1.20 to 1.23), or a tar archive of them, which is unpacked into
# .cache/kube. etcd comes from that folder, from the system, or, as root on Debian, from the package etcd-server.
set -euo pipefail
cd "$(dirname "$0")/.."
source=${1:?"give a folder or a tar archive with kube-apiserver and kube-controller-manager"}
folder=$source
if [ -f "$source" ]; then
    folder=$PWD/.cache/kube
    if [ ! -x "$folder/kube-apiserver" ] || [ "$source" -nt "$folder/kube-apiserver" ]; then
        mkdir -p "$folder"
        tar xmf "$source" -C "$folder"
    fi
fi
for binary in kube-apiserver kube-controller-manager; do
    [ -x "$folder/$binary" ] || { echo "$binary is not in $folder" >&2; exit 1; }
done
if ! PATH="$folder:$PATH" command -v etcd >/dev/null; then
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        echo "etcd is missing: install it, or put it into $folder" >&2
        exit 1
    fi
    # Debian starts a service of its own on install; a policy file keeps it from that.
    policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod 755 "$policy"
        trap 'rm -f "$policy"' EXIT
    fi
    (apt-get update -q && apt-get install -yq --no-install-recommends etcd-server) >&2
fi
cd "$folder" && pwd
