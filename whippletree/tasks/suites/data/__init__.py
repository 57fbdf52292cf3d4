"""Data-analysis tasks: questions over small CSV files or a SQLite database, with exact graders.

| module | holds |
|---|---|
| `worlds` | what tables are about, their rows, and how they become files |
| `questions` | kinds of questions in four grades, each with its answer and a program that finds it |
| `suite` | the suite cut from them |
"""
