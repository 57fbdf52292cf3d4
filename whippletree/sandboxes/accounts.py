"""Users of a sandbox, by its own /etc/passwd and /etc/group, which are read inside it by code that is not the sandbox's.

Invariants (tests/sandboxes/test_sandbox_accounts.py): a name must be in the file, a number need not; neither file is followed
when it is a symbolic link, and both have a limit of size; lines that are not accounts are skipped.
"""

from __future__ import annotations

from typing import NamedTuple

from whippletree.sandboxes import files

_LIMIT = 1_000_000
_HIGHEST = 2**32 - 2


class Account(NamedTuple):
    """A user. Example: Account(name="nobody", uid=65534, gid=65534, groups=(65534,), home="/nonexistent")"""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str


def find(base: str, user: str) -> Account:
    """The account of that name or number below `base`, or of "user:group". Raises ValueError."""
    user, colon, group = user.partition(":")
    found = next((account for account in _accounts(base) if user in (account.name, str(account.uid))), None)
    if found is None:
        if not (user.isascii() and user.isdigit() and int(user) <= _HIGHEST):
            raise ValueError(f"the sandbox has no user {user!r} in its /etc/passwd")
        found = Account(name=user, uid=int(user), gid=int(user), groups=(), home="/")
    if colon:
        gid = _group(base, group)
        if gid is None:
            raise ValueError(f"the sandbox has no user {user}:{group}: no such group is in its /etc/group")
        return found._replace(gid=gid, groups=(gid,))
    return found._replace(groups=(found.gid, *_groups(base, found)))


def _group(base: str, group: str) -> int | None:
    """The number of a group, which need not be in the file if it is given as one."""
    for fields in _lines(base, "/etc/group"):
        if len(fields) >= 4 and fields[0] == group and _is_number(fields[2]):
            return int(fields[2])
    return int(group) if _is_number(group) else None


def _lines(base: str, path: str) -> list[list[str]]:
    text = files.read(base, path, _LIMIT) or b""
    return [line.split(":") for line in text.decode("utf-8", errors="replace").splitlines()]


def _accounts(base: str) -> list[Account]:
    return [
        Account(name=fields[0], uid=int(fields[2]), gid=int(fields[3]), groups=(), home=fields[5] or "/")
        for fields in _lines(base, "/etc/passwd")
        if len(fields) >= 7 and fields[0] and _is_number(fields[2]) and _is_number(fields[3])
    ]


def _groups(base: str, account: Account) -> list[int]:
    return [
        int(fields[2])
        for fields in _lines(base, "/etc/group")
        if len(fields) >= 4 and _is_number(fields[2]) and account.name in fields[3].split(",") and int(fields[2]) != account.gid
    ]


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and int(text) <= _HIGHEST
