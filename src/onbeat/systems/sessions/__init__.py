"""Scheduled prompts for chat sessions."""
