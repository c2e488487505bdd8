"""JSON schemas of what is stored and configured, for readers in other languages.

    python -m draftbench.schemas

writes them anew beside this file, from the models that check every read and write.
"""

import json
from pathlib import Path

from pydantic import BaseModel

from draftbench.config import Campaign
from draftbench.files import write_atomic
from draftbench.records import CellFailure, CellResult

FOLDER = Path(__file__).resolve().parent
MODELS: dict[str, type[BaseModel]] = {
    "campaign": Campaign,
    "cell_result": CellResult,
    "cell_failure": CellFailure,
}


def schema_text(name: str) -> str:
    """The schema of one of `MODELS`, JSON Schema 2020-12, as its file holds it."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **MODELS[name].model_json_schema()}
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def schema_path(name: str) -> Path:
    """Where it lies."""
    return FOLDER / f"{name}.schema.json"


def write_schemas() -> None:
    """Write every schema's file."""
    for name in MODELS:
        write_atomic(schema_path(name), schema_text(name))
