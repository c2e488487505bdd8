"""The measuring client: bytes of a stream in, checked records out.

    sse          bytes -> events
    transport    one HTTP request, every read stamped, idle and total limits
    events       what one event says, whichever API sent it
    api_*        bodies and events of `/generate`, chat completions and completions
    stream       one request -> one `RequestRecord`
    load         closed loop and sessions; warmup, journal, telemetry, cell around them

It knows HTTP only, so every engine is measured by the same code.
"""
