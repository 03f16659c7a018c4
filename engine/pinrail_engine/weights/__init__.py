"""Hash what is loaded, load what was hashed."""
