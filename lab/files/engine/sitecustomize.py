"""Collect garbage rarely: the engine's imports make millions of lasting objects, and looking through them takes a
quarter of the time of its start."""

import gc

gc.set_threshold(100_000, 50, 50)
