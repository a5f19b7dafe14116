"""Workflows: DAGs that an executor runs."""
