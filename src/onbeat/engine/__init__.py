"""The imperative shell around `core.plan`: plan, claim, announce, launch, finish.

The order is the durability argument. A run is written before it is claimed, announced before it is
launched, and launched under the key it was written with. So a crash between any two steps costs a
repeat that the store recognizes, or a run that is recorded as lost; never a run that is silently
lost or doubled.
"""
