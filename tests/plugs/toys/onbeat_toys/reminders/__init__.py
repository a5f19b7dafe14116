"""A system whose schedules are the lines of a file: `07:30 breakfast`."""
