"""What every store on an SQL database does, once: the calls of `Store`, each one transaction.

A database adds how it is opened, how calls become transactions, and how rows are held.
"""
