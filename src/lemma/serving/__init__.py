"""A trained model behind a web page and an OpenAI-compatible API."""
