"""The TeX programs that typeset a report, and where they come from."""

import shutil

TEX_PROGRAMS = ("pdflatex", "latexmk")
TEX_PACKAGES = "texlive-latex-base texlive-latex-recommended texlive-pictures lmodern latexmk"
"""Of Debian and Ubuntu; the list in envs/apt.txt, which `make report` installs."""


def missing_programs() -> list[str]:
    """Those of `TEX_PROGRAMS` that are not on PATH."""
    return [program for program in TEX_PROGRAMS if shutil.which(program) is None]
