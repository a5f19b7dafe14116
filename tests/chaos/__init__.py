"""Chaos: real nodes, killed with SIGKILL and otherwise hurt again and again, then held to account.

`node` is the program that is killed and `broken` how it can be broken, `workload` what it has to do.
`driver` is who kills: the `lives` of nodes, the `people` who use them, the `harm` that is done to those
who share a server. `databases` are what is left behind, `history` is what is read of it, together with
the witness of the targets themselves, and `checker` judges. `processes` finds what nobody holds any more.
"""
