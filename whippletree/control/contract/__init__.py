"""The contract of a harness, checked by running it: `whippletree harness check NAME`.

    scenario ──► script ──► scripted engine ◄── gateway ◄── tap ◄── harness in a sandbox
                                                  │          │ faults, what was asked
                                                  └► record ─┴─► grading ──► report

`scenarios` says what is tried, `world` runs it with the parts that attempts are run with, `grading` compares what was seen with
the adapter's facts, `report` and `page` show it.

Invariants (tests/control/test_contract_check.py):
- a check never touches the network and leaves no process, sandbox or file behind;
- what differs from the adapter's facts is FAIL, whichever of the two is wrong;
- a report has a line for each point of the contract, in one order, whatever happened.
"""

from whippletree.control.contract.checking import check_harness
from whippletree.control.contract.report import Grade, Line, Report

__all__ = ["Grade", "Line", "Report", "check_harness"]
