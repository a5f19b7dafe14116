"""The template of what a flow has as `meta[].data`, with its schedule commented out."""

META_TEMPLATE = """\
# Who made it, and what it is for
display:
description:
tags: []
author:
  name:

# Have it run by itself: take the # away
# schedule:
#   # Cron expression (minute hour day month weekday), in UTC unless timezone says otherwise
#   cron: "0 9 * * MON-FRI"    # 9 AM on weekdays
#   # cron: "*/15 * * * *"     # every 15 minutes
#   # cron: "0 0 1 * *"        # the first of each month
#   timezone: UTC
#
#   # What it is started with
#   inputs:
#     query: "daily report"
#     limit: 100
#
#   # Whether it runs by itself
#   enabled: true
#
#   # How often it is tried again after a failure, and after how many seconds
#   retry_count: 0
#   retry_delay: 60
"""
