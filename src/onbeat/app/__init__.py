"""The composition root: settings, stores and plugs become a running process."""

from onbeat.host.plugs import find_plugs

find_plugs()  # definitions can be read from here on
