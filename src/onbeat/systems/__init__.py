"""Front ends with a vocabulary and defaults of their own: they translate, the core decides."""
