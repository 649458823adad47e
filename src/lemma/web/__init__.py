"""A trained model behind a web page and the API that OpenAI's clients speak.

The room sees `spec` and `errors` only: it is handed the verbs it needs as callables (`Verbs`), so that the verb that
opens it can stand in `api` beside the others. Its files import FastAPI, which is optional; this one does not.
"""
