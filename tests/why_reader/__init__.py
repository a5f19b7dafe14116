"""An independent reader of `why`: messy weeks in five systems, and what their rows and events say."""
