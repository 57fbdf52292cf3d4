#!/usr/bin/env bash
# What the tests of sandboxes use beside bubblewrap, from Debian's packages: runc and podman, and a static shell for images.
# Needs root. Without them those tests say why they skip. CRIU, for snapshots of processes, is found by WHIPPLETREE_CRIU.
set -euo pipefail

if command -v runc >/dev/null && command -v podman >/dev/null && command -v busybox >/dev/null; then
    exit 0
fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "install runc, podman and busybox-static (this script needs root and apt-get)" >&2
    exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -q >/dev/null
apt-get install -yq --no-install-recommends runc podman busybox-static conmon >/dev/null
