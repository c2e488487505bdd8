"""What stands when the plug is pulled: a service, and a resident unit that has stepped aside."""

import sys
from pathlib import Path

from tests.servers.factories import make_handle, make_spec
from tests.systemd.inside.conftest import UNITS, systemctl

from draftbench.servers.displacement import Displacement, state_directory
from draftbench.servers.systemd import SystemdSupervisor


def test_a_service_runs_in_the_place_of_a_resident() -> None:
    (UNITS / "resident.service").write_text("[Service]\nExecStart=/bin/sleep 600\n")
    systemctl("daemon-reload")
    systemctl("start", "resident.service")
    supervisor = SystemdSupervisor("system")
    program = (sys.executable, "-S", "-u", "-c", "import time; print('up'); time.sleep(600)")
    spec = make_spec(*program, num_gpus=1, log=Path("unused.log"))
    Displacement("system", ("resident.service",)).before_start(spec)
    handle = make_handle(spec, supervisor.spawn(spec))
    assert supervisor.failure(handle) is None
    (state_directory() / "handle.json").write_text(handle.model_dump_json())
