"""HTTP in, HTTP out: the OpenAI-shaped edge."""
