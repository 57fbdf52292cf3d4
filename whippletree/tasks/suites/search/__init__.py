"""Search tasks: questions over a small corpus of invented documents, with a search tool in the sandbox.

| module | holds |
|---|---|
| `worlds` | invented people, towns, companies... and the documents about them |
| `questions` | questions of one to four steps, and comparisons |
| `tool` | the programs `search` and `read_doc`, run inside a sandbox |
| `suite` | the suite cut from them |
"""
