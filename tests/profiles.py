"""How many random examples a test tries. `HYPOTHESIS_PROFILE` chooses the profile.

`fixed` tries the same examples in every run, so that only a change of the code turns a run red.
`quick` tries a tenth of them. `random` looks for new ones, and for many more where a test states
no number of its own.
"""

import os

from hypothesis import settings

PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "fixed")

settings.register_profile("fixed", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("quick", parent=settings.get_profile("fixed"), max_examples=10)
settings.register_profile("random", deadline=None, max_examples=2_000)
settings.load_profile(PROFILE)


def scaled(number):
    """Return how many of so many examples this profile tries."""
    return number // 10 if PROFILE == "quick" else number


def examples(number):
    """Have Hypothesis try so many examples, or fewer in `quick`."""
    return settings(max_examples=scaled(number))
