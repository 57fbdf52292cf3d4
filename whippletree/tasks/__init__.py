"""Harbor task directories, verifiers and task generators.

| module | holds |
|---|---|
| `format`, `keys`, `refusals`, `variables`, `dockerfile`, `images` | what a task directory may say, and what is wrong |
| `reading`, `task` | a directory as a `Task` |
| `preparing`, `artifacts`, `verifier` | what is done in a sandbox before and after an agent |
| `scores`, `reward` | from what the tests wrote to a reward: pure |
| `trial`, `checks` | a task run by hand, and whether it is sound |
| `trail`, `demonstrator`, `history` | a generated family; repositories that know the future |
| `suites/`, `writing` | suites of generated tasks; drafts as directories |
| `injecting/`, `importing/`, `filtering`, `journal` | tasks from repositories and data sets, chosen; resumable |
"""

from whippletree.tasks.checks import TaskCheck, check_task
from whippletree.tasks.config import TrailFamily
from whippletree.tasks.images import Backing
from whippletree.tasks.reading import Reading, load_task, read_task
from whippletree.tasks.task import Step, Task
from whippletree.tasks.verifier import verify

__all__ = ["Backing", "Reading", "Step", "Task", "TaskCheck", "TrailFamily", "check_task", "load_task", "read_task", "verify"]
