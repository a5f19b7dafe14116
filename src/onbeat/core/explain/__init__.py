"""Why something happened or did not, what will happen, and triggers in words."""
