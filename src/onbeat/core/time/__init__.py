"""Time without clocks: zones, days, cron texts, durations and instants as integers."""
