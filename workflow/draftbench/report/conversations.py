"""The model's input texts of a finished cell, rebuilt from its prompts and its own replies."""

from draftbench.client.plan import Message
from draftbench.client.prompts import expand_prompts, load_prompts, load_scenario
from draftbench.client.template import ChatTemplate
from draftbench.config import AgenticWorkload, Campaign, ConcurrencyWorkload
from draftbench.records import CellResult


def input_texts(campaign: Campaign, result: CellResult, template: ChatTemplate) -> dict[str, str]:
    """Request id -> the text whose continuation was asked for.

    The cell's spec holds the hash of the prompt file, so the file is the one that was measured.

    Args:
        campaign: whose file names are relative to the working directory.
        result: of one of its cells.
        template: the target's.

    Raises:
        ConfigError: a file cannot be read, or the target has no template.
    """
    workload = campaign.workloads[result.workload]
    if isinstance(workload, AgenticWorkload):
        return _conversation_texts(workload, result, template)
    prompts = load_prompts(workload.prompts)
    if isinstance(workload, ConcurrencyWorkload):
        prompts = expand_prompts(prompts, workload.num_requests)
    by_id = {prompt.id: template.render(prompt.messages()) for prompt in prompts}
    return {request.request_id: by_id[request.prompt_id] for request in result.requests}


def _conversation_texts(
    workload: AgenticWorkload, result: CellResult, template: ChatTemplate
) -> dict[str, str]:
    scenario = load_scenario(workload.scenario, workload.num_turns)
    messages: dict[int, list[Message]] = {}
    texts = {}
    for request in sorted(result.requests, key=lambda request: (request.repeat, request.turn)):
        history = messages.setdefault(request.repeat, list(scenario.opening()))
        history.append({"role": "user", "content": scenario.turns[request.turn - 1]})
        texts[request.request_id] = template.render(history)
        history.append({"role": "assistant", "content": request.text})
    return texts
