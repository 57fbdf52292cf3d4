"""Names and label values for any text, and the labels by which our objects are known in a namespace that others use, too.

Invariants (tests/control/kubernetes/test_kubernetes_template.py): names and label values are valid for Kubernetes and differ
for different texts.
"""

from __future__ import annotations

import hashlib
import re

MANAGER = "whippletree"
MANAGED_BY = "app.kubernetes.io/managed-by"
SLUG = 24  # characters of a text that stay readable in a name


def label_value(text: str) -> str:
    """A valid label value for any text: the text itself where it is one, else readable and different for different texts."""
    if re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", text):
        return text
    return slug(text)


def slug(text: str) -> str:
    """A readable part of a name, different for different texts: lower case letters, digits and dashes, at most 33."""
    safe = re.sub(r"[^a-z0-9]+", "-", text.lower())[:SLUG].strip("-")
    return f"{safe or 'x'}-{hashlib.sha256(text.encode('utf-8', 'surrogateescape')).hexdigest()[:8]}"
