"""The reference: a plan runs by the meanings of its operators, with no compiler and no vendor library. Nothing is timed on it."""
