"""The kinds of target of all plugs, installed when the first of them is looked up.

Whatever reads definitions imports this module: `core` itself knows no plugs.
"""

from onbeat.core.target_kinds import KINDS
from onbeat.host.plugs import find_plugs

__all__ = ["KINDS"]

KINDS.loader = find_plugs
