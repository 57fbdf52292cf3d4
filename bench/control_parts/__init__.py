"""The processes of bench/control.py."""
