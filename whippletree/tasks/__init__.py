"""Harbor task directories, verifiers and task generators."""

from whippletree.tasks.checks import TaskCheck, check_task
from whippletree.tasks.config import TrailFamily
from whippletree.tasks.task import Task, load_task
from whippletree.tasks.verifier import verify

__all__ = ["Task", "TaskCheck", "TrailFamily", "check_task", "load_task", "verify"]
