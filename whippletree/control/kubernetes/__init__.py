"""Attempts as Kubernetes Jobs: desired state in the store, observed state from the API server, reconciled.

| module | holds |
|---|---|
| `decide` | what to do, from what is wanted and what is observed: a pure function |
| `outcome` | what an ended, stuck or vanished Job means for its attempt: pure functions |
| `objects` | the parts of Kubernetes' objects that are read, typed |
| `template`, `labels` | a user's template made into one Job of ours |
| `network` | the run's network policies |
| `access`, `client`, `mirror` | credentials, the REST API with retries, list and watch |
| `attempts` | the life of one attempt: create, end, record |
| `reconciler` | the loop; `serve` starts it in the controller's process |
"""
