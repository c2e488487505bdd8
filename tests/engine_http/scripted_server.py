"""A server process before a scripted engine: `scripted_server.py PORT TOKENIZER_FOLDER STEP_S TEXT`."""

import logging
import sys
from pathlib import Path

from scripted_engine import ScriptedEngine

from draftbench.engine.serving.lifecycle import claim_port, serve
from draftbench.engine.serving.service import Service
from draftbench.engine.serving.tokenizer import Tokenizer


def main(port, folder, step_s, text):
    logging.basicConfig(level="INFO", format="%(message)s")
    listener = claim_port("127.0.0.1", int(port))
    print(f"Claimed http://127.0.0.1:{listener.getsockname()[1]}", file=sys.stderr)
    tokenizer = Tokenizer(Path(folder))
    groups = [(token_id,) for token_id in tokenizer.encode(text)]
    engine = ScriptedEngine(lambda request: groups, step_s=float(step_s), context_length=4096)
    engine.start()
    serve(Service(engine, tokenizer, {"served_model_name": "tiny", "model_path": "tiny"}), listener)


if __name__ == "__main__":
    main(*sys.argv[1:])
