"""The composition root: settings, stores and plugs become a running process."""

import onbeat.host.kinds  # noqa: F401 - definitions are read with the kinds of all plugs
