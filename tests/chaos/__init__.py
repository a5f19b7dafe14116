"""Chaos: a real `onbeat up` on one file, killed with SIGKILL again and again, then held to account.

`node` is the program that is killed, `workload` what it has to do, `driver` who kills it, and
`checker` who reads the rows, the events and the witness of the targets themselves, and judges.
"""
