"""The second client of ``make bench-client``, run by an environment that has llmeter; it imports nothing of ours.

Reads ``{"url", "model", "tokens", "warmups", "prompts": one list per user}``, prints the figures as JSON.
"""

import asyncio
import json
import sys

from llmeter.endpoints import OpenAICompletionStreamEndpoint
from llmeter.runner import Runner


async def measured(given):
    """Every user its own prompts, one after the other; all users at once."""

    async def user(prompts):
        endpoint = OpenAICompletionStreamEndpoint(
            given["model"], api_key="none", base_url=given["url"] + "/v1", max_retries=0
        )
        exact = {"temperature": 0, "extra_body": {"ignore_eos": True}}
        asked = [endpoint.create_payload(prompt, given["tokens"], **exact) for prompt in prompts]
        return await Runner(endpoint, clients=1, timeout=600).run(payload=asked, n_requests=len(asked))

    users = [prompts for prompts in given["prompts"] if prompts]
    await asyncio.gather(*(user(prompts[:1] * given["warmups"]) for prompts in users))
    runs = await asyncio.gather(*(user(prompts) for prompts in users))
    responses = [response for run in runs for response in run.responses]
    errors = [response.error for response in responses if response.error]
    if errors:
        raise SystemExit(errors[0])
    return {
        "ttft_ms": 1000 * sum(one.time_to_first_token for one in responses) / len(responses),
        "latency_s": sum(one.time_to_last_token for one in responses) / len(responses),
        "aggregate_tps": sum(one.num_tokens_output for one in responses) / max(run.total_test_time for run in runs),
    }


print(json.dumps(asyncio.run(measured(json.load(sys.stdin)))))
