"""Reading and replacing files safely."""
