"""A Kubernetes pod as the machine of an attempt: `sandbox` is the backend, the others are its parts.

manifest ──► cluster (create, lease, wait, remove) ──► commands, files and snapshots, all over exec of the pod, by `scripts`
"""
