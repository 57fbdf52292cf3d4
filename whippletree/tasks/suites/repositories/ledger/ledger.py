"""Accounts with amounts in cents, moved by transfers."""

from __future__ import annotations


class Refused(Exception):
    """A transfer that may not be."""


class Ledger:
    """Accounts by name. Money is neither made nor lost by a transfer."""

    def __init__(self):
        self._balances = {}
        self._limits = {}
        self._entries = []

    def open(self, name, balance=0, overdraft=0):
        """A new account; its balance may go down to -overdraft."""
        if name in self._balances:
            raise Refused(f"{name} is there already")
        if balance < 0 or overdraft < 0:
            raise Refused("an account opens with no debt")
        self._balances[name] = balance
        self._limits[name] = overdraft

    def balance(self, name):
        """Cents in an account."""
        if name not in self._balances:
            raise Refused(f"there is no account {name}")
        return self._balances[name]

    def transfer(self, source, target, amount, note=""):
        """Move an amount, or raise Refused and change nothing."""
        if amount <= 0:
            raise Refused("only positive amounts can be moved")
        if source == target:
            raise Refused("source and target are the same")
        self.balance(target)
        if self.balance(source) - amount < -self._limits[source]:
            raise Refused(f"{source} has too little")
        self._balances[source] -= amount
        self._balances[target] += amount
        self._entries.append((source, target, amount, note))

    def history(self, name):
        """(other account, signed amount, note) of each transfer of an account, the newest first."""
        found = []
        for source, target, amount, note in reversed(self._entries):
            if source == name:
                found.append((target, -amount, note))
            elif target == name:
                found.append((source, amount, note))
        return found

    def total(self):
        """All money."""
        return sum(self._balances.values())

    def interest(self, percent):
        """Interest per account for positive balances, rounded half up to whole cents; changes nothing."""
        return {name: (balance * percent + 50) // 100 for name, balance in self._balances.items() if balance > 0}

    def undo(self):
        """Take the last transfer back, whatever the balances are; False when there is none."""
        if not self._entries:
            return False
        source, target, amount, _ = self._entries.pop()
        self._balances[source] += amount
        self._balances[target] -= amount
        return True
