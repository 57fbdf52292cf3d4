"""The parts of bench/learning.py, one measurement each: `run(arguments) -> values` and the options it adds."""
