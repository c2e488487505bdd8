"""An `nvidia-smi` whose GPUs are a JSON file: `{"used_mib": {"0": 500}, "pids": {"0": [123]}}`.

A process that has ended leaves the list, and its memory with it, as on a real GPU.
"""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

IDLE_MIB = 500
BUSY_MIB = 90_000
TOTAL_MIB = 97_887
SCRIPT = """#!{python}
import json, os, sys
state = json.load(open({state!r}))
def is_alive(pid):
    try:
        return open(f"/proc/{{pid}}/stat").read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
if sys.argv[1] == "topo":
    print("GPU0 NV18 GPU1")
    sys.exit()
for index in range(state["num_gpus"]):
    pids = [p for p in state["pids"].get(str(index), []) if is_alive(p)]
    used = state["used_mib"].get(str(index), {busy} if pids else {idle})
    if sys.argv[1].startswith("--query-compute-apps"):
        for pid in pids:
            print(f"GPU-{{index:04d}}, {{pid}}")
    elif sys.argv[1] == "--query-gpu=index,uuid,name,memory.total,memory.used":
        print(f"{{index}}, GPU-{{index:04d}}, Fake 96 GB, {total}, {{used}}")
    elif sys.argv[1].startswith("--query-gpu=index,driver_version"):
        print(f"{{index}}, 580.1, Enabled, 600.00, Enabled, Default, 2430")
    else:
        sys.exit(6)  # telemetry asks for more than this fake knows
"""


@dataclass(frozen=True)
class FakeGpus:
    folder: Path
    num_gpus: int = 8

    def install(self) -> "FakeGpus":
        """Write the program into `folder`/bin; put that first on PATH."""
        tool = self.folder / "bin" / "nvidia-smi"
        tool.parent.mkdir(parents=True)
        numbers = {"busy": BUSY_MIB, "idle": IDLE_MIB, "total": TOTAL_MIB}
        tool.write_text(SCRIPT.format(python=sys.executable, state=str(self.state), **numbers))
        tool.chmod(0o755)
        self.show()
        return self

    @property
    def state(self) -> Path:
        return self.folder / "gpus.json"

    @property
    def path(self) -> str:
        """PATH with the program first."""
        return f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"

    def show(self, pids: dict[int, list[int]] | None = None, used_mib: dict[int, int] | None = None) -> None:
        """Have these processes compute on these GPUs."""
        content = {"num_gpus": self.num_gpus, "pids": pids or {}, "used_mib": used_mib or {}}
        self.state.write_text(json.dumps(content))
