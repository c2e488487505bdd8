"""The schemas in the repository are those of the models, and hold for what is written."""

import json

import jsonschema
import pytest
from tests.test_campaign import campaign

from draftbench.config import Campaign
from draftbench.schemas import MODELS, schema_path, schema_text


@pytest.mark.parametrize("name", MODELS)
def test_a_schema_is_up_to_date(name):
    assert schema_path(name).read_text() == schema_text(name), "run: python -m draftbench.schemas"


def schema(name):
    return json.loads(schema_path(name).read_text())


def test_a_resolved_campaign_follows_its_schema():
    resolved = Campaign.model_validate(campaign()).model_dump(mode="json")
    jsonschema.validate(resolved, schema("campaign"))


def test_an_unknown_key_breaks_the_schema():
    values = Campaign.model_validate(campaign()).model_dump(mode="json") | {"repeat": 2}
    with pytest.raises(jsonschema.ValidationError, match="repeat"):
        jsonschema.validate(values, schema("campaign"))


def test_a_failure_without_a_reason_breaks_the_schema():
    failure = dict.fromkeys(("campaign", "cell", "service", "workload", "message", "failed_at"), "x")
    with pytest.raises(jsonschema.ValidationError, match="reason"):
        jsonschema.validate(failure | {"spec": {}}, schema("cell_failure"))
