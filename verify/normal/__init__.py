"""Normal forms of tensor programs: sums of products over iterators, with guards; see ``terms`` for the data."""
