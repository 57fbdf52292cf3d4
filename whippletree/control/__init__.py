"""Rollout life cycle, on one machine or in a cluster: controller, attempts, pool hosts, process supervision.

| module | holds |
|---|---|
| `controller` | the reconciler: claims queuing rollouts, runs attempts, writes how they ended |
| `attempt`, `phases` | one attempt, and the limits of its phases |
| `launch` | a harness as a process in the sandbox, or as a tenant of a pool host |
| `pool`, `pool_host`, `wire` | long-lived hosts that import a harness once, and what they say to each other |
| `seal` | closing an attempt at the gateway, or without it |
| `keeping` | snapshots of attempts, for people to open afterwards |
| `kubernetes/` | attempts as Jobs of a cluster instead |
| `policy` | the failure table, blame, retries, restarts: pure decisions |
| `supervisor`, `guard`, `lifeline` | child processes that are restarted, ended, and never outlive their parent |
| `process` | the controller as a process: `python -m whippletree.control SPEC.json` |
"""
