"""Numbers about measurements: arrays and records in, frozen results out; no files, no printing."""
