"""The calls of `Store` in SQL that every database shares, each one transaction.

A database adds how it is opened, how calls become transactions, and how rows are locked.
"""
