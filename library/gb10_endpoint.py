#!/usr/bin/python
"""Asks the endpoint what it serves, one question, and whatever else is to be asked."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gb10_endpoint
short_description: Asks an OpenAI-compatible endpoint for its models and for chat completions
description: Every wait is bounded. Judging the answers is the caller's. Changes nothing, works in check mode.
options:
  url: {description: "Base address, for example http://192.168.1.153:8000.", type: str, required: true}
  model: {description: Served model name to ask., type: str, required: true}
  question: {description: What to ask., type: str, required: true}
  max_tokens: {description: Longest answer in tokens., type: int, default: 50}
  chats:
    description: "Further completions: a name to the request's body, model and temperature apart."
    type: dict
    default: {}
  known:
    description: "What an earlier call returned: its models and completion are not asked for again."
    type: dict
    default: {}
  timeout: {description: Seconds for each of the requests., type: float, default: 60}
  key_file:
    description: The file that keeps the endpoint's API key, if it has one; it is sent with every request.
    type: path
    default: /var/lib/gb10/api/key.env
author: gb10-cluster
"""
EXAMPLES = r"""
- name: The endpoint is asked
  gb10_endpoint:
    url: http://192.168.1.153:8000
    model: deepseek-v4.1-flash
    question: Count from 1 to 10.
  register: asked
"""
RETURN = r"""
models:
  description: "Answer to GET /v1/models: {status, body}. Status 0: no connection, the body says why."
  returned: always
  type: dict
completion:
  description: The same of POST /v1/chat/completions; not asked (status 0) when the models were not listed.
  returned: always
  type: dict
chats: {description: The same of every one of O(chats)., returned: always, type: dict}
"""

import http.client
import json
import urllib.error
import urllib.request

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gb10 import key_file

NOT_ASKED = {"status": 0, "body": "not asked"}


def ask(url, timeout, payload=None, key=""):
    """Status and decoded body of one request; status 0 when nothing answered."""
    data = None if payload is None else json.dumps(payload).encode()
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    request = urllib.request.Request(url, data=data, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            status, raw = answer.status, answer.read()
    except urllib.error.HTTPError as problem:
        status, raw = problem.code, problem.read()
    except (OSError, http.client.HTTPException) as problem:
        return {"status": 0, "body": str(problem)}
    try:
        return {"status": status, "body": json.loads(raw)}
    except ValueError:
        return {"status": status, "body": raw.decode(errors="replace")[:2000]}


def everything(url, model, question, max_tokens, chats, timeout, key="", known=None):
    """Answers to all requests; nothing is asked of an endpoint that does not list its models, or that is known."""
    known = known or {}
    models = known.get("models") or ask(url + "/v1/models", timeout, key=key)
    if models["status"] != 200:
        return {"models": models, "completion": NOT_ASKED, "chats": dict.fromkeys(chats, NOT_ASKED)}

    def chat(body):
        return ask(url + "/v1/chat/completions", timeout, {**body, "model": model, "temperature": 0}, key)

    asked = {"messages": [{"role": "user", "content": question}], "max_tokens": max_tokens}
    first = known.get("completion") or chat(asked)
    # An engine that does not answer one question is not asked the next: it would only wait again.
    rest = {name: chat(body) if first["status"] else NOT_ASKED for name, body in chats.items()}
    return {"models": models, "completion": first, "chats": rest}


def main():
    module = AnsibleModule(
        argument_spec={
            "url": {"type": "str", "required": True},
            "model": {"type": "str", "required": True},
            "question": {"type": "str", "required": True},
            "max_tokens": {"type": "int", "default": 50},
            "chats": {"type": "dict", "default": {}},
            "known": {"type": "dict", "default": {}},
            "timeout": {"type": "float", "default": 60},
            "key_file": {"type": "path", "default": key_file.PATH, "no_log": False},
        },
        supports_check_mode=True,
    )
    path = module.params.pop("key_file")
    try:
        key = key_file.read(path)
    except OSError as problem:
        module.fail_json(msg=f"The API key cannot be read: {problem.filename}: {problem.strerror}")
    module.exit_json(changed=False, **everything(**module.params, key=key))


if __name__ == "__main__":
    main()
