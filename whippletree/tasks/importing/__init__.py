"""Tasks out of data sets on disk: rows of bug-fixing data sets with local git mirrors, questions with answers, Harbor folders.

| module | holds |
|---|---|
| `rows` | JSON lines, parquet and arrow files as rows |
| `swe` | rows shaped like SWE-bench's and SWE-smith's |
| `questions` | rows with a question and an answer |
| `run` | the work over all rows, resumable |
"""
