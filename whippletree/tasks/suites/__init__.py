"""Suites of generated tasks: small, offline, each with an oracle, training and held-out tasks apart by content.

| module | holds |
|---|---|
| `handing_in` | the program `submit` |
| `asking`, `grade` | questions with one answer, and the script that compares it |
| `shell/` | shell tasks in six families and four grades |
| `data/` | questions over small CSV files and SQLite databases |
| `search/` | questions over a corpus, with a search tool |
| `bugs`, `repositories/` | a dozen small modules, and the bugs put into them |
| `cutting` | a suite cut into training and held-out tasks, and written |
| `generated` | all that are generated without a sandbox, by name |
"""
