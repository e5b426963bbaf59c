"""The reference: every kernel is its fragment, evaluated by the meanings of the operators."""
