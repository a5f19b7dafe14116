"""The imperative shell around `core.plan`: plan, claim, announce, launch, finish.

The order is the durability argument. A run is written before it is claimed, announced before it is
launched, and launched under the key it was written with; so a crash between any two lines costs a
repeat that the store recognises or a run that is told as lost, never one that is silently lost or
doubled.
"""
