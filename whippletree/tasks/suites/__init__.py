"""Suites of generated tasks: small, offline, each with an oracle, training and held-out tasks apart by content.

| module | holds |
|---|---|
| `handing_in` | the program `submit` |
| `shell/` | shell tasks in six families and four grades |
| `cutting` | a suite cut into training and held-out tasks, and written |
"""
