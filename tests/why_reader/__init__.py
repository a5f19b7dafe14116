"""An independent check of `why`: messy weeks in five systems, read from rows and events."""
