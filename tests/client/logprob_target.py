"""A target of scripts that answers requests for log probabilities as SGLang 0.5.17 does."""

from dataclasses import dataclass, field

PROMPT, TOKEN, RIVAL, THIRD = 1, 7, 8, 9  # a prompt is of the first one, an output of the second


@dataclass
class LogprobTarget:
    """Always prefers TOKEN; by how much depends on the position in the output.

    Attributes:
        gaps: position -> gap of TOKEN and RIVAL in a prefill pass; 5 elsewhere.
        changes: position -> by how much decoding sees another gap; 0 elsewhere.
        edit: changes an answer before it is sent.
        bodies: requests so far.
    """

    gaps: dict[int, float] = field(default_factory=dict)
    changes: dict[int, float] = field(default_factory=dict)
    edit: object = staticmethod(lambda answer: answer)
    bodies: list[dict] = field(default_factory=list)

    def __call__(self, body):
        self.bodies.append(body)
        num_tokens = body["sampling_params"]["max_new_tokens"]
        prompt_ids = [PROMPT] * len(body["text"]) if "text" in body else body["input_ids"]
        first = prompt_ids.count(TOKEN)
        decoded = [self.row(first + i, is_decoding=True) for i in range(num_tokens)]
        meta = {
            "output_token_logprobs": [[row[0][0], row[0][1], None] for row in decoded],
            "output_top_logprobs": decoded,
        }
        if "logprob_start_len" in body:
            start = body["logprob_start_len"]
            places = range(start + 1, len(prompt_ids))
            rows = [self.row(prompt_ids[:place].count(TOKEN)) for place in places]
            meta["input_token_logprobs"] = [[None, prompt_ids[start], None]]
            meta["input_token_logprobs"] += [[-1.0, prompt_ids[place], None] for place in places]
            meta["input_top_logprobs"] = [None, *rows]
        answer = {"text": "", "meta_info": meta}
        if body.get("return_prompt_token_ids"):
            answer["prompt_token_ids"] = prompt_ids
        return self.edit(answer)

    def row(self, position, *, is_decoding=False):
        """Candidates before an output token, best first."""
        gap = self.gaps.get(position, 5.0) + (self.changes.get(position, 0.0) if is_decoding else 0.0)
        values = sorted([(-0.25, TOKEN), (-0.25 - gap, RIVAL), (-9.0, THIRD)], reverse=True)
        return [[logprob, token_id, None] for logprob, token_id in values]
