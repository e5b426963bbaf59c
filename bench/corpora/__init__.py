"""Rule corpora of other systems, read as rules of our language and judged."""
