"""From result files to a PDF: load, summarise, draw, typeset.

`summary.json` is the seam: `summarise` writes it from results, the figures and the prose read nothing else.
"""
