"""Front ends with their own vocabulary and defaults: they translate, the core decides."""
