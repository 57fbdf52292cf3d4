"""Bugs put into a repository that works: each verified by its own tests, and written as a task.

    repository at a commit ─► tests pass? ─► mutations, drawn by seed ─► tests in a sandbox: some fail, not all? ─► task

| module | holds |
|---|---|
| `mutations` | places in a module where a small edit of the syntax tree makes another program |
| `repository` | the files of a commit; a repository that begins and ends with them |
| `runner`, `judge` | scripts that run inside a sandbox: the tests one by one, and the verdict |
| `testing` | a run of the tests in a sandbox |
| `statement`, `packing` | what the agent is told, and the task directory |
| `pipeline` | all of it, resumable |
"""
