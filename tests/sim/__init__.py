"""The simulator: the real planner, dispatcher and SQLite store, attacked on a virtual clock.

A seed decides everything: the schedules, what users do to them, how long calls take, what fails,
when the node dies. `python -m tests.sim --seed 7` plays one seed again, exactly.
"""
