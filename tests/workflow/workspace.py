"""A directory in which the real workflow runs a small campaign on the fake engine."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
FAKE = Path(__file__).with_name("fake_engine.py")
LIMIT_S = 120
# Stand in for the report's three scripts: their work is tested elsewhere and takes most of the time.
REPORT_STEPS = {
    "summarise": 'write("out", "requests.csv", "cells.csv", "summary.json")',
    "figures": 'write("out", "figures.json")',
    "typeset": "Path(options.out).write_text('a report')",
}
REPORT_STEP = """import argparse
from pathlib import Path
parser = argparse.ArgumentParser()
parser.add_argument("--out")
options, _ = parser.parse_known_args()
def write(key, *names):
    Path(options.out).mkdir(parents=True, exist_ok=True)
    for name in names:
        (Path(options.out) / name).write_text("written")
"""


def small_campaign():
    """Three services x two workloads."""
    return {
        "campaign": "small",
        "models": {
            "tiny": {"target": {"source": "path:models/target"}, "drafter": {"source": "path:models/drafter"}}
        },
        "engine": {"kind": "embedded", "python": "./fake-python"},
        "methods": {
            "ar": {"algorithm": "ar"},
            "dflash": {"algorithm": "dflash"},
            "ddtree-b8": {"algorithm": "ddtree", "budget": 8},
        },
        "workloads": {
            "short": {"kind": "single", "prompts": "prompts.yaml", "max_tokens": 4},
            "pair": {
                "kind": "concurrency",
                "prompts": "prompts.yaml",
                "concurrency": 2,
                "num_requests": 2,
                "max_tokens": 4,
            },
        },
        "warmup": {"prompts": "warmup.yaml", "max_tokens": 2, "max_batches": 2},
        "staging_root": "staged",
        "limits": {"ready_s": 10, "stop_s": 2, "idle_s": 5, "request_s": 20},
    }


def two_services():
    """The same with AR and DFlash only: four cells."""
    campaign = small_campaign()
    del campaign["methods"]["ddtree-b8"]
    return campaign


@dataclass
class Finished:
    """How an invocation of Snakemake ended."""

    code: int
    text: str

    def jobs(self):
        """Rule -> number of jobs, of a dry run."""
        table = re.search(r"^job +count\n[- ]+\n(.*?)\n\n", self.text, re.MULTILINE | re.DOTALL)
        rows = [line.split() for line in table.group(1).splitlines()] if table else []
        return {name: int(count) for name, count in rows if name != "total"}

    def error(self):
        """The sentence that ended it."""
        return re.search(r"^error: (.*)$", self.text, re.MULTILINE).group(1)


class Workspace:
    """A copy of the workflow's own files with a campaign of its own."""

    def __init__(self, path):
        self.path = path
        self.events_file = path / "events.jsonl"
        self.behaviour_file = path / "behaviour.json"

    def create(self, campaign=None):
        shutil.copy(ROOT / "Snakefile", self.path)
        for name in ("profiles", "scripts", "envs", "workflow/rules"):
            shutil.copytree(ROOT / name, self.path / name)
        (self.path / "config").mkdir()
        shutil.copy(ROOT / "config/train-smollm2.yaml", self.path / "config")  # read by the training rules
        for name in ("report", "stats"):  # inputs of the report's rules; the library itself is installed
            (self.path / "workflow/draftbench" / name).mkdir(parents=True)
            (self.path / "workflow/draftbench" / name / "code.py").write_text("")
        for name, call in REPORT_STEPS.items():
            (self.path / f"scripts/{name}.py").write_text(f"{REPORT_STEP}{call}\n")
        self._write_models()
        self._write_prompts()
        fake = self.path / "fake-python"
        fake.write_text(f'#!/bin/sh\nexec {sys.executable} {FAKE} "$@"\n')
        fake.chmod(0o755)
        self.behave()
        self.events_file.write_text("")
        self.configure(campaign or small_campaign())
        return self

    def _write_models(self):
        target, drafter = self.path / "models/target", self.path / "models/drafter"
        shape = {"hidden_size": 8, "vocab_size": 100, "num_hidden_layers": 4}
        for folder in (target, drafter):
            folder.mkdir(parents=True)
            (folder / "model.safetensors").write_bytes(b"weights")
        (target / "config.json").write_text(json.dumps(shape))
        (target / "tokenizer_config.json").write_text(
            json.dumps({"chat_template": "{% for m in messages %}{{ m.content }}\n{% endfor %}"})
        )
        dflash = {"block_size": 16, "num_target_layers": 4, "dflash_config": {"target_layer_ids": [0, 2]}}
        (drafter / "config.json").write_text(json.dumps(shape | dflash))

    def _write_prompts(self):
        for name, word in (("prompts", "measured"), ("warmup", "warm")):
            prompts = [{"id": f"{word}-{i}", "type": "prose", "text": f"{i} a {word} text"} for i in range(2)]
            (self.path / f"{name}.yaml").write_text(yaml.safe_dump({"prompts": prompts}))

    def configure(self, campaign):
        (self.path / "config/config.yaml").write_text(yaml.safe_dump(campaign, sort_keys=False))

    def behave(self, **behaviour):
        self.behaviour_file.write_text(json.dumps(behaviour))

    def environment(self):
        """Of this process, with what keeps workspaces apart, and apart from campaigns of this host."""
        own = {
            "DRAFTBENCH_RUN_DIR": str(self.path / "run"),
            "FAKE_EVENTS": str(self.events_file),
            "FAKE_BEHAVIOUR": str(self.behaviour_file),
        }
        inherited = {k: v for k, v in os.environ.items() if k != "DRAFTBENCH_SESSION"}
        # Without it the end of a run would start what a campaign of this host has displaced.
        return {"DRAFTBENCH_STATE_DIR": str(self.path / "state")} | inherited | own

    def popen(self, *arguments, environment=None):
        return subprocess.Popen(
            [sys.executable, "-m", "snakemake", *arguments],
            cwd=self.path,
            env=self.environment() | (environment or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=heed_interrupts,  # noqa: PLW1509 - the tests start no threads
        )

    def snakemake(self, *arguments, environment=None):
        process = self.popen(*arguments, environment=environment)
        try:
            text, _ = process.communicate(timeout=LIMIT_S)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        return Finished(process.returncode, text)

    def run(self, *arguments, cores=1, environment=None):
        return self.snakemake("--cores", str(cores), "report/bench.pdf", *arguments, environment=environment)

    def pending(self, *arguments):
        """Rule -> number of jobs that a dry run announces."""
        return self.snakemake("-n", "report/bench.pdf", *arguments).jobs()

    def events(self, event=None):
        lines = [json.loads(line) for line in self.events_file.read_text().splitlines()]
        return [line for line in lines if event in (None, line["event"])]

    def starts(self):
        """Methods in the order in which their servers were started."""
        return [line["method"] for line in self.events("start")]

    def result(self, cell):
        return self.path / f"results/small/{cell}.json"

    def failure(self, cell):
        return json.loads((self.path / f"results/small/{cell}.failed.json").read_text())

    def log(self, rule, name):
        return (self.path / f"logs/{rule}/small/{name}.log").read_text()

    def reboot(self):
        """What lies on tmpfs is gone."""
        shutil.rmtree(self.path / "run", ignore_errors=True)
        shutil.rmtree(self.path / "staged", ignore_errors=True)

    def living_servers(self):
        """Processes of fake servers that were started here and still run."""
        return [pid for pid in {line["pid"] for line in self.events("start")} if is_running(pid)]

    def clean_up(self):
        for pid in self.living_servers():
            os.kill(pid, signal.SIGKILL)


def heed_interrupts():
    """A shell has its background jobs ignore Ctrl-C, and so what these start."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def is_running(pid):
    try:
        return "fake_engine" in Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False
