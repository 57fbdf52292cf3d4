"""A queue of jobs with priorities and things that must be done before."""

from __future__ import annotations


class Cycle(Exception):
    """Jobs that wait for each other."""


class Jobs:
    """Jobs by name. Smaller numbers are more urgent; equals go in the order in which they came."""

    def __init__(self):
        self._jobs = {}
        self._done = set()

    def add(self, name, priority=10, after=()):
        """A new job, to be done after others, which may come later."""
        if name in self._jobs:
            raise ValueError(f"{name} is there already")
        self._jobs[name] = (priority, len(self._jobs), tuple(after))

    def ready(self):
        """Jobs that can be done now, the most urgent first."""
        found = []
        for name, (priority, number, after) in self._jobs.items():
            if name not in self._done and all(other in self._done for other in after):
                found.append((priority, number, name))
        return [name for _, _, name in sorted(found)]

    def finish(self, name):
        """A job is done. It must have been ready."""
        if name not in self.ready():
            raise ValueError(f"{name} is not ready")
        self._done.add(name)

    def order(self):
        """The order in which the jobs that are left would be done, one by one. Raises Cycle, KeyError for an unknown one."""
        for _, _, after in self._jobs.values():
            for other in after:
                if other not in self._jobs:
                    raise KeyError(other)
        kept = set(self._done)
        order = []
        try:
            while len(self._done) < len(self._jobs):
                ready = self.ready()
                if not ready:
                    raise Cycle(", ".join(sorted(set(self._jobs) - self._done)))
                order.append(ready[0])
                self._done.add(ready[0])
        finally:
            self._done = kept
        return order

    def waiting_for(self, name):
        """All jobs that must be done before this one can be, directly or not, and are not done."""
        found = set()
        todo = list(self._jobs[name][2])
        while todo:
            other = todo.pop()
            if other in found or other in self._done:
                continue
            found.add(other)
            todo.extend(self._jobs[other][2])
        return sorted(found)

    def depth(self, name):
        """The length of the longest chain of jobs that ends with this one."""
        return 1 + max((self.depth(other) for other in self._jobs[name][2]), default=0)
