"""Readers of definition files and of calendars."""

import onbeat.host.kinds  # noqa: F401 - definitions are read with the kinds of all plugs
