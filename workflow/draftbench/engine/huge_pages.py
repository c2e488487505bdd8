"""Memory in huge pages, which the allocators must be told to ask for before they start."""

import os
import sys

# Torch's allocator reads the first, the C library's, at its start only, the second.
ENVIRONMENT = {"THP_MEM_ALLOC_ENABLE": "1", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


def ask_for_huge_pages() -> None:
    """Start this process again, under the same pid, with the environment that makes its memory huge pages.

    Weights are read once a step, so the page size decides how often the CPU walks the page table, and how
    much a host that manages the memory of its virtual machines gets in the way: docs/engine.md has the
    measured difference. What the user has set stays.
    """
    if not ENVIRONMENT.keys() <= os.environ.keys():
        os.execve(sys.executable, sys.orig_argv, ENVIRONMENT | os.environ)  # noqa: S606 -- no shell is meant
