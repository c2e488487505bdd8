"""Reproducible benchmark of draft-based speculative decoding.

Dependency direction: `records` and `config` know nothing of the rest; `engine` knows nothing of
client, servers, stats or report; the client knows HTTP only.
"""
