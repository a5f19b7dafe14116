"""What the machine provides: files that are read or replaced safely, secrets, installed extras."""
