"""Prompts that are sent to chat sessions on schedule."""
