"""A Kubernetes cluster, for whoever runs attempts or sandboxes in one; knows nothing of either.

| module | holds |
|---|---|
| `access` | credentials: a kubeconfig or a pod's service account |
| `client` | the REST API with retries, list and watch |
| `channels` | commands in a container: the websocket of the `exec` subresource |
| `objects`, `labels`, `network` | what is read of objects, how ours are named, destinations of policies |
| `template` | a user's YAML with expressions, rendered in a sandboxed environment |
| `config` | settings that all users of a cluster have |
"""
