"""How the API server says no."""

__all__ = ["ApiRefusal"]


class ApiRefusal(Exception):
    """The server says no."""

    def __init__(self, code, reason, message, details=None):
        super().__init__(f"{code} {reason}: {message}")
        self.code = code
        self.status = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "code": code,
            "reason": reason,
            "message": message,
            "details": details or {},
        }
