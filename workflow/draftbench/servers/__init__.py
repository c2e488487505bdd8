"""The life of a service: start, watch, identify, stop.

base         what is started, what is on record of it, and the interfaces below
launch       engine kind -> argument list (`embedded`, `sglang`)
process      supervisor: a detached process group
systemd      supervisor: a unit
health       readiness by a real generation; identity by /server_info
guards       what must be free before a start and after a stop: ports, GPUs
environment  what is recorded of host and software
lifecycle    all of it in order: the idempotent start, and the stop
"""
