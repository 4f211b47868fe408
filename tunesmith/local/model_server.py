"""An OpenAI-compatible server of one model: ``python -m tunesmith.local.model_server --model FOLDER --name NAME``.

The endpoints are those of ``transformers serve``, pinned to one model: it is loaded before the port answers, requests
for another name are refused, nothing is fetched from the network, no code of the model is run, and weights are
safetensors only.

    POST /v1/chat/completions, POST /v1/completions   also with ``"stream": true``; generation is one request at a time
    GET  /v1/models, GET /health

The same paths below ``/openai``, where KServe's runtime has them.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import traceback
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from fastapi import FastAPI

HOST = "127.0.0.1"


class CannotServe(Exception):
    """The model cannot be served; the message says why."""


class OneModel:
    """Stands where ``transformers serve`` has its manager of models, and knows one model."""

    def __init__(self, name: str, model: Any, tokenizer: Any):
        self.force_model = name
        self._pair = (model, tokenizer)

    def process_model_name(self, name: str) -> str:
        """The name as it is: not of a repository, so without a revision."""
        return name

    def load_model_and_processor(self, name: str, **_: Any) -> tuple[Any, Any]:
        """The model and its tokenizer."""
        return self._pair

    def get_model_modality(self, model: Any, processor: Any = None) -> Any:
        """Text only: no message makes the server open a file or an address."""
        from transformers.cli.serving.utils import Modality

        return Modality.LLM


def load(folder: Path, name: str, *, dtype: str = "auto", device: str = "auto") -> OneModel:
    """Load a causal language model and its tokenizer from ``folder``.

    Raises:
        CannotServe: the folder holds no such model.
    """
    if not (folder / "config.json").is_file():
        raise CannotServe(f"{folder}: no config.json there: name the folder of a Hugging Face model")
    if not any(folder.glob("*.safetensors")):
        raise CannotServe(f"{folder}: no *.safetensors there: save the model with save_pretrained()")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    local = {"local_files_only": True, "trust_remote_code": False}
    tokenizer = AutoTokenizer.from_pretrained(folder, **local)
    model = AutoModelForCausalLM.from_pretrained(folder, use_safetensors=True, dtype=dtype, **local)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return OneModel(name, model.to(device).eval(), tokenizer)


def build_app(served: OneModel) -> FastAPI:
    """The server's application for a loaded model."""
    from fastapi import APIRouter, FastAPI, HTTPException, Request
    from fastapi.responses import JSONResponse
    from jinja2 import TemplateError
    from transformers.cli.serving.chat_completion import ChatCompletionHandler
    from transformers.cli.serving.completion import CompletionHandler
    from transformers.cli.serving.utils import GenerationState

    state = GenerationState()
    handlers = {"chat": ChatCompletionHandler(served, state), "text": CompletionHandler(served, state)}
    router, app = APIRouter(), FastAPI(title="tunesmith", docs_url=None, redoc_url=None)

    async def answer(handler: str, body: dict[str, Any]) -> Any:
        if body.get("model") not in (None, served.force_model):
            raise HTTPException(
                404, f"The model {body['model']!r} does not exist: this server has {served.force_model}"
            )
        try:
            response = await handlers[handler].handle_request(body, os.urandom(8).hex())
        except (ValueError, TypeError, KeyError, TemplateError) as error:
            raise HTTPException(400, f"the request cannot be answered: {error}") from error
        if body.get("stream"):
            response.body_iterator = _with_done(response.body_iterator)
        return response

    @router.post("/chat/completions")
    async def chat_completions(body: dict[str, Any]) -> Any:
        if problem := _messages_problem(body.get("messages")):
            raise HTTPException(400, problem)
        return await answer("chat", body)

    @router.post("/completions")
    async def completions(body: dict[str, Any]) -> Any:
        return await answer("text", body)

    @router.get("/models")
    async def models() -> Any:
        model = {"id": served.force_model, "object": "model", "created": 0, "owned_by": "tunesmith"}
        return {"object": "list", "data": [model]}

    @app.get("/health")
    async def health() -> Any:
        return {"status": "ok"}

    @app.exception_handler(HTTPException)
    async def refused(_: Request, error: HTTPException) -> JSONResponse:
        details = {"message": error.detail, "type": "invalid_request_error", "code": error.status_code}
        return JSONResponse({"error": details}, status_code=error.status_code)

    app.include_router(router, prefix="/v1")
    app.include_router(router, prefix="/openai/v1")
    return app


def _messages_problem(messages: Any) -> str | None:
    """What is wrong with the messages of a chat, which the library would only meet as a KeyError."""
    if not isinstance(messages, list) or not messages:
        return "messages: write a list of at least one message"
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            return f"messages[{index}].role: write user, assistant or system"
        content = message.get("content")
        texts = content if isinstance(content, list) else [{"type": "text", "text": content}]
        # The library would leave out a part that is no text, and answer something else than was asked.
        text = all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in texts)
        calls_only = content is None and message.get("tool_calls")
        if not text and not calls_only:
            return f"messages[{index}].content: write a text"
    return None


async def _with_done(chunks: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """The stream with the line by which OpenAI's clients know its end; the library leaves it out."""
    async for chunk in chunks:
        yield chunk
    yield "data: [DONE]\n\n"


def main() -> None:
    """Read the command line, load, serve until SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m tunesmith.local.model_server")
    parser.add_argument("--model", type=Path, required=True, help="folder of a Hugging Face model")
    parser.add_argument("--name", required=True, help="under which requests name the model")
    parser.add_argument("--host", default=HOST)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--dtype", default="auto", help="auto (as saved), float32, bfloat16 or float16")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    arguments = parser.parse_args()
    # Before transformers is imported, which reads them then.
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    try:
        listener = _bind(arguments.host, arguments.port)
        served = load(arguments.model, arguments.name, dtype=arguments.dtype, device=arguments.device)
        app = build_app(served)
    except CannotServe as error:
        _give_up(str(error))
    except ModuleNotFoundError as error:
        _give_up(f"{error}: run pip install 'tunesmith[local]'")
    except Exception as error:  # the reason must reach whoever waits for the service, whatever it is
        traceback.print_exc()
        _give_up(f"{arguments.model}: {type(error).__name__}: {error}")
    import uvicorn

    uvicorn.Server(uvicorn.Config(app, timeout_graceful_shutdown=10)).run(sockets=[listener])


def _bind(host: str, port: int) -> socket.socket:
    """Take the port before the model is loaded; it answers only when the server listens."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise CannotServe(f"port {port} of {host} cannot be had ({error.strerror}): choose another") from error
    return listener


def _give_up(message: str) -> NoReturn:
    """Leave the reason where Kubernetes looks for it, and end."""
    if place := os.environ.get("TUNESMITH_TERMINATION_LOG"):
        Path(place).write_text(message)
    sys.exit(message)


if __name__ == "__main__":
    main()
