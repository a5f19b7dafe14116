"""The template of `meta[].data` of a flow, with its schedule commented out."""

META_TEMPLATE = """\
# Who made it, and what it is for
display:
description:
tags: []
author:
  name:

# Remove the # to schedule it
# schedule:
#   # Cron expression (minute hour day month weekday), in UTC unless timezone says otherwise
#   cron: "0 9 * * MON-FRI"    # 9 AM on weekdays
#   # cron: "*/15 * * * *"     # every 15 minutes
#   # cron: "0 0 1 * *"        # the first of each month
#   timezone: UTC
#
#   # Inputs of each run
#   inputs:
#     query: "daily report"
#     limit: 100
#
#   # Whether it is scheduled
#   enabled: true
#
#   # How often a failed run is retried, and after how many seconds
#   retry_count: 0
#   retry_delay: 60
"""
