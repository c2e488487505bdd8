"""The engine over HTTP, with the routes and field names of SGLang that the benchmark's client uses.

Life of a request: `protocol` checks the body and makes a `Job`; `service` submits it and turns the
engine's token ids into text (`detokenize`); `shapes` writes the endpoint's JSON; `app` sends it.
"""
