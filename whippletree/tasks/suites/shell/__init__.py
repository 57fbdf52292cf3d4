"""Shell tasks: six families, four grades of difficulty each.

| module | holds |
|---|---|
| `parts` | an exercise, and how it becomes a task |
| `files`, `text`, `permissions`, `archives`, `tables`, `finding` | the families |
| `families` | all of them by name |

Grade 1 is one command whose words are in the instruction; grade 2 takes an option, a pattern or a second command; grade 3 a
pipeline or a loop; grade 4 several steps over more data.
"""
