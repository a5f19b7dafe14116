"""The composition root: settings, stores, launchers and systems become one running process."""
