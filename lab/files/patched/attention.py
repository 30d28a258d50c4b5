"""Lab stand-in for the patched attention.py of vllm-dsv41:latest.

Its path in the image is real, its content is not; nothing imports it.
"""

VARIANT = "patched"
