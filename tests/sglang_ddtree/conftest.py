"""The plugin is a distribution of its own, installed into SGLang's environment and not into this one."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "workflow" / "sglang_ddtree" / "src"))
