"""Everything that can be known before the first service starts, found at once and told in one list.

checklist  runs the checks of a campaign; problems end a run, notes do not
campaign   prompts, models, room, ports, TeX
gpus       number, memory and users of the GPUs
sglang     SGLang's environment, CUDA, launch lines, tensor parallelism
units      rights and units of systemd
forecast   the clock, and how long the campaign will take
"""
