"""Training of DFlash drafters: from task lists to a checkpoint and its held-out evaluation.

Three steps, one script each:

1. `generate_responses`: task lists -> prompts -> the target's own responses, a corpus of token ids.
2. `train_drafter`: corpus -> drafter; the frozen target runs in the same step.
3. `evaluate_drafter`: drafter -> tokens a round on held-out and natural prompts, by slot and budget.

The modules here add what the engine does not have: gradients, many anchors a sequence, large batches.
"""
