"""One decoder, and how config.json describes it."""
