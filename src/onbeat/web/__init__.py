"""The API over HTTP: who may come in, what they can ask for, and what happens while they listen."""
