"""The routes: SGLang's subset that the benchmark's client and supervisors use."""

import asyncio
import json
import os
import re
import time
import uuid
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from draftbench.engine.request import Request, SamplingParams
from draftbench.engine.serving import protocol
from draftbench.engine.serving.protocol import HttpError, Job
from draftbench.engine.serving.service import Generation, Service
from draftbench.engine.serving.shapes import GenerateShape, OpenAIShape, Shape
from draftbench.engine.serving.tokenizer import Tokenizer
from draftbench.errors import DraftbenchError

MAX_BODY_BYTES = 16 * 2**20
HEALTH_TIMEOUT_S = 20.0
FLUSH_POLL_S = 0.02

Parser = Callable[[bytes, Tokenizer, int], Job]
ShapeFactory = Callable[[Generation], Shape]


class Answer(Response):
    """Runs one job while it is sent: as server-sent events, one for each engine step, or as one object."""

    def __init__(self, service: Service, job: Job, make_shape: ShapeFactory) -> None:
        super().__init__()
        self._service, self._job, self._make_shape = service, job, make_shape

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the job; when the client goes away, the engine drops it."""
        with self._service.run(self._job) as generation:
            watcher = asyncio.create_task(self._abort_on_disconnect(receive))
            shape = self._make_shape(generation)
            try:
                if self._job.is_stream:
                    await self._stream(generation, shape, send)
                else:
                    async for _ in generation.pieces():
                        pass
                    await JSONResponse(shape.whole())(scope, receive, send)
            finally:
                watcher.cancel()

    async def _stream(self, generation: Generation, shape: Shape, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            async for piece in generation.pieces():
                await send(_event(shape.event(piece)))
        except HttpError as error:
            await send(_event(json.dumps(error_object(error.code, str(error)))))
        else:
            for event in [*shape.closing(), "[DONE]"]:
                await send(_event(event))
        await send({"type": "http.response.body", "body": b""})

    async def _abort_on_disconnect(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._service.engine.abort(self._job.request.rid)


class Routes:
    """The endpoints of one service."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def app(self) -> Starlette:
        """The ASGI application."""
        name = str(self._service.info["served_model_name"])
        chat = partial(OpenAIShape, model=name, is_chat=True)
        text = partial(OpenAIShape, model=name, is_chat=False)
        routes = [
            Route("/generate", self._generation(protocol.parse_generate, GenerateShape), methods=["POST"]),
            Route("/v1/completions", self._generation(protocol.parse_completion, text), methods=["POST"]),
            Route("/v1/chat/completions", self._generation(protocol.parse_chat, chat), methods=["POST"]),
            Route("/v1/models", self._models),
            Route("/health", self._health),
            Route("/health_generate", self._health_generate),
            Route("/server_info", self._server_info),
            Route("/get_server_info", self._server_info),
            Route("/model_info", self._model_info),
            Route("/flush_cache", self._flush_cache, methods=["GET", "POST"]),
            Route("/abort_request", self._abort_request, methods=["POST"]),
        ]
        kinds = (DraftbenchError, HTTPException, Exception)
        return Starlette(routes=routes, exception_handlers=dict.fromkeys(kinds, _on_error))

    def _generation(self, parse: Parser, make_shape: ShapeFactory) -> Callable[[HttpRequest], Any]:
        async def endpoint(request: HttpRequest) -> Response:
            raw = await _read_body(request)
            job = parse(raw, self._service.tokenizer, self._service.max_context_tokens)
            return Answer(self._service, job, make_shape)

        return endpoint

    async def _models(self, _request: HttpRequest) -> Response:
        info = self._service.info
        model = {"id": info["served_model_name"], "object": "model", "created": int(time.time())}
        model |= {"owned_by": "draftbench", "root": info["model_path"]}
        model |= {"max_model_len": self._service.max_context_tokens}
        return JSONResponse({"object": "list", "data": [model]})

    async def _health(self, _request: HttpRequest) -> Response:
        return Response(status_code=200 if self._service.is_healthy else 503)

    async def _health_generate(self, _request: HttpRequest) -> Response:
        sampling = SamplingParams(max_new_tokens=1, ignore_eos=True)
        job = Job(Request(f"HEALTH_CHECK_{uuid.uuid4().hex}", (0,), sampling))
        try:
            async with asyncio.timeout(HEALTH_TIMEOUT_S):
                with self._service.run(job) as generation:
                    async for _ in generation.pieces():
                        pass
        except (TimeoutError, HttpError):
            return Response(status_code=503)
        return Response(status_code=200 if generation.output_ids else 503)

    async def _server_info(self, _request: HttpRequest) -> Response:
        state = self._service.engine.describe()
        names = ("avg_spec_accept_length", "last_gen_throughput")
        internal = {name: state[name] for name in names if state.get(name) is not None}
        info = {"status": "ready" if self._service.is_healthy else "unhealthy", "pid": os.getpid()}
        width = {"speculative_num_draft_tokens": int(str(state["budget"])) + 1} if state.get("budget") else {}
        return JSONResponse({**self._service.info, **state, **info, **width, "internal_states": [internal]})

    async def _model_info(self, _request: HttpRequest) -> Response:
        path = self._service.info["model_path"]
        return JSONResponse({"model_path": path, "tokenizer_path": path, "is_generation": True})

    async def _flush_cache(self, request: HttpRequest) -> Response:
        text = request.query_params.get("timeout", "0")
        if not re.fullmatch(r"\d{1,5}(\.\d*)?", text, re.ASCII):
            raise HttpError(f"expected seconds in the query's timeout, got {text!r:.80}")
        clock = asyncio.get_running_loop().time
        deadline_s = clock() + float(text)
        while not self._service.engine.flush_cache():
            if clock() >= deadline_s:
                raise HttpError("the cache is not flushed while requests run or wait; try ?timeout=30")
            await asyncio.sleep(FLUSH_POLL_S)
        return PlainTextResponse("Cache flushed.\n")

    async def _abort_request(self, request: HttpRequest) -> Response:
        rid = protocol.parse_abort(await _read_body(request))
        num_aborted = self._service.abort_all() if rid is None else int(self._service.engine.abort(rid))
        return JSONResponse({"num_aborted": num_aborted})


def error_object(code: int, message: str) -> dict[str, Any]:
    """An error as OpenAI's clients expect it."""
    phrase = HTTPStatus(code).phrase.replace(" ", "").removesuffix("Error")
    return {"error": {"message": message, "type": f"{phrase}Error", "code": code}}


async def _read_body(request: HttpRequest) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            raise HttpError(f"expected a body of at most {MAX_BODY_BYTES} bytes, got more", 413)
    return bytes(body)


def _event(data: str) -> Message:
    return {"type": "http.response.body", "body": f"data: {data}\n\n".encode(), "more_body": True}


async def _on_error(request: HttpRequest, error: Exception) -> Response:
    """A fault of a request in its own words, a wrong path or method by name, a defect without details."""
    code, message = 500, f"the server has a defect, see its log: {type(error).__name__}"
    if isinstance(error, HTTPException):
        code, message = error.status_code, f"{request.method} {request.url.path}: {error.detail}"
    elif isinstance(error, DraftbenchError):
        code, message = getattr(error, "code", 400), str(error)
    return JSONResponse(error_object(code, message), code, getattr(error, "headers", None))
