"""Errors in the form that OpenAI's clients expect, with the status that tells them apart."""

from typing import Any

from lemma.errors import InputError, LemmaError


class Refusal(Exception):
    """A request that is not answered: the HTTP status, and why."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    def to_dict(self) -> dict[str, Any]:
        """The body of the answer.

        >>> Refusal(404, "model = 'b' is unknown.", "model", "model_not_found").to_dict()["error"]["type"]
        'invalid_request_error'
        """
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        told = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": told}


def refusal_of(error: Exception) -> Refusal | None:
    """An error that was raised on purpose, as a refusal; None for any other."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, LemmaError):
        return Refusal(400 if isinstance(error, InputError) else 500, str(error))
    return None
