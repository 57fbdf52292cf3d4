"""Scores that a judge model gives by a rubric: what is asked, of whom, how the answer is read, and where it is kept."""
