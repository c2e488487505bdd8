"""Every error that a user can mend, as one tree.

DraftbenchError            one sentence: expected, got, where, what to do
+-- ConfigError            a campaign file, prompt file or command line that does not fit
+-- StagingError           a model that cannot be fetched, checked, converted or stored
+-- ServerError            a service that does not do what a service must do
|   +-- StartTimeout       it was not ready in time
|   +-- ServerDied         its process ended
|   +-- WrongServer        something else answers at its address
+-- MeasurementError       a measurement that must not become a number
+-- ShapeError             a tensor or model whose shape does not fit (also a ValueError)
+-- ReportError            results that cannot be made into a report
"""


class DraftbenchError(Exception):
    """Base of all errors that end a command with exit code 1 and one sentence."""


class ConfigError(DraftbenchError):
    """A campaign file, prompt file or command line that does not fit."""


class StagingError(DraftbenchError):
    """A model that cannot be fetched, checked, converted or stored."""


class ServerError(DraftbenchError):
    """A service that does not do what a service must do.

    Attributes:
        reason: one word for the report: `oom`, `timeout`, `crash`, `port`, `gpu`, `identity`, `error`.
    """

    reason = "error"

    def __init__(self, message: str, reason: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason or self.reason


class StartTimeout(ServerError):
    """The service was not ready in time."""

    reason = "timeout"


class ServerDied(ServerError):
    """The service's process ended."""

    reason = "crash"


class WrongServer(ServerError):
    """Something else than the expected service answers at its address."""

    reason = "identity"


class MeasurementError(DraftbenchError):
    """A measurement that must not become a number."""


class ShapeError(DraftbenchError, ValueError):
    """A tensor or model whose shape does not fit."""


class ReportError(DraftbenchError):
    """Results that cannot be made into a report."""
