"""Attempts as Kubernetes Jobs: desired state in the store, observed state from the API server, reconciled.

| module | holds |
|---|---|
| `decide` | what to do, from what is wanted and what is observed: a pure function |
| `outcome` | what an ended, stuck or vanished Job means for its attempt: pure functions |
| `objects` | Jobs with their pods, as `decide` takes them |
| `template`, `labels` | a user's template made into one Job of ours |
| `network` | the run's network policies |
| `mirror` | a list of objects that a watch keeps (the API itself is spoken by `whippletree.kubernetes`) |
| `attempts` | the life of one attempt: create, end, record |
| `reconciler` | the loop; `serve` starts it in the controller's process |
"""
