"""Lab stand-in for the stock model_state.py of vLLM, as in vllm-dsv41:engram-mem.

Its path in the image is real, its content is not; nothing imports it.
"""

VARIANT = "stock"
