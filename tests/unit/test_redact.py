"""Secrets are taken out of what is kept; what is none stays."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gb10 import changes, record
from gb10.redact import HIDDEN, forms, known_in, scrub, scrub_text, secret_name

TOKEN = "c0ffee-5ec2e7-value"


@pytest.mark.parametrize(
    "text",
    [
        f"api_key={TOKEN}",
        f"api_key = {TOKEN}",
        f"HF_TOKEN: {TOKEN}",
        f'{{"password": "{TOKEN}"}}',
        f"'secret': '{TOKEN}'",
        f"export OPENAI_API_KEY={TOKEN};",
        f"--api-key {TOKEN}",
        f"--api-key={TOKEN} --port 8000",
        f"Authorization: Bearer {TOKEN}",
        f"curl https://robot:{TOKEN}@host/v2?x=1",
        f"pip install git+https://{TOKEN}@host/r.git",
        f"redis://:{TOKEN}@host",
        f"https://host/?access_token={TOKEN}&x=1",
        "sk-abcdefgh12345678",
        "hf_abcdefgh12345678",
        "nvapi-abcdefgh12345678",
        "ghp_abcdefgh12345678",
        "glpat-abcdefgh12345678",
        "AKIAABCDEFGHIJKLMNOP",
        "eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0dXJl",
        "root:$6$saltsalt$hashhashhash:1:0",
        f"-----BEGIN OPENSSH PRIVATE KEY-----\n{TOKEN}\n-----END OPENSSH PRIVATE KEY-----\n",
        f"-----BEGIN RSA PRIVATE KEY-----\n{TOKEN}\nand cut off here",
    ],
)
def test_what_looks_like_a_secret_is_hidden(text: str) -> None:
    said = scrub_text(f"before {text} after")
    assert HIDDEN in said
    assert TOKEN not in said
    assert "abcdefgh" not in said
    assert said.startswith("before ")
    assert scrub_text(said) == said


@pytest.mark.parametrize(
    "text",
    [
        "max_num_batched_tokens: 8192",
        "--max-num-batched-tokens 8192 --tokenizer-mode auto",
        "num_speculative_tokens=5",
        "the key: value",
        "kv_cache_tokens: 300000",
        "ssh nvidia@10.77.1.161",
        "sha256:" + "ab12" * 16,
        "https://host:8000/v1/models",
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPublicKeyIsNoSecret alice@laptop",
        "/etc/ssh/ssh_host_ed25519_key.pub",
        "basic tests",
    ],
)
def test_what_is_none_stays(text: str) -> None:
    assert scrub_text(text) == text


def test_values_under_telling_names_are_hidden_at_any_depth() -> None:
    given_ = {"a": {"db_password": TOKEN, "port": 5}, "env": [{"HF_TOKEN": TOKEN}], "api_key": ["x", TOKEN], "token": 7}
    kept = {"a": {"db_password": HIDDEN, "port": 5}, "env": [{"HF_TOKEN": HIDDEN}], "api_key": HIDDEN, "token": 7}
    assert scrub(given_) == kept


def test_the_word_after_an_option_is_hidden() -> None:
    assert scrub(["serve", "--api-key", TOKEN, "--port", "8"]) == ["serve", "--api-key", HIDDEN, "--port", "8"]


@settings(max_examples=50, deadline=None)
@given(st.text(min_size=6, max_size=40), st.text(max_size=20), st.text(max_size=20))
def test_a_known_value_is_hidden_wherever_it_stands(secret: str, before: str, after: str) -> None:
    said = scrub_text(before + secret + after, forms(secret))
    assert secret not in said or secret in HIDDEN or secret in before + HIDDEN + after


@pytest.mark.parametrize("form", sorted(forms('p@ss word"1\nsecond line of it')))
def test_a_known_value_is_hidden_in_every_form(form: str) -> None:
    assert form not in scrub_text(f"x {form} y", known_in({"password": 'p@ss word"1\nsecond line of it'}))


def test_short_values_do_not_blank_ordinary_words() -> None:
    assert known_in({"password": "abc", "user": "visible", "pin_secret": 12345678}) == set()
    assert not secret_name("tokenizer")
    assert not secret_name("PWD")


# --- what is kept of results -----------------------------------------------------------------------------------------

CASES: list[tuple[dict[str, Any], list[dict[str, Any]]]] = [
    ({"changed": True}, [{}]),
    ({"changed": True, "diff": []}, [{}]),
    ({"changed": True, "censored": "no", "diff": {"before": TOKEN, "after": ""}}, [{"note": "no_log"}]),
    ({"cmd": ["curl", "--token", TOKEN]}, [{"note": f"curl --token {HIDDEN}"}]),
    (
        {"diff": {"before": "a\n", "after": "b\n", "after_header": "/f"}},
        [{"diff": "--- /f\n+++ /f\n@@ -1 +1 @@\n-a\n+b\n"}],
    ),
    ({"diff": [{"prepared": "x: 1\n"}, {"prepared": "y: 2\n"}]}, [{"diff": "x: 1\ny: 2\n"}]),
    ({"diff": {"before": f"key_token={TOKEN}", "after": "key_token=other"}}, [{"diff": f": {HIDDEN} alone differs\n"}]),
    ({"diff": {"before": "", "after": None}}, [{}]),
    ({"diff": {"before": "", "src_binary": 1, "after_header": "/f"}}, [{"diff": "/f: too large or binary, no diff\n"}]),
    ({"diff": {"dst_larger": 104448, "after_header": "/f"}}, [{"diff": "/f: too large or binary, no diff\n"}]),
    (
        {"results": [{"changed": True, "item": "a"}, {"changed": False, "item": "b"}, {"changed": True, "item": "c"}]},
        [{"item": "a"}, {"item": "c"}],
    ),
    ({"results": [{"changed": True, "item": "a", "_ansible_no_log": True}]}, [{"note": "no_log"}]),
]


@pytest.mark.parametrize(("result", "kept"), CASES)
def test_what_is_kept_of_a_change(result: dict[str, Any], kept: list[dict[str, Any]]) -> None:
    assert changes.changed_items(result) == kept


def test_a_secret_at_the_cut_is_not_cut_in_half() -> None:
    """It is hidden before the text is bounded."""
    text = "x" * (changes.MOST_DIFF - 20) + f"\nx_token={TOKEN}\n" + "y" * 10000
    said = changes.diff_text({"before": "", "after": text})
    assert TOKEN[:6] not in said
    assert len(said) < changes.MOST_DIFF + 100
    assert "characters more, sha256" in said


@pytest.mark.parametrize("unit", ["x", "a.", "-", "token", "token-", "://", "x=", "eyJ", '"', "-a "])
def test_long_texts_are_read_once(unit: str) -> None:
    """A pattern that goes back over what it read would take hours."""
    assert scrub_text(unit * (200_000 // len(unit)))


def test_a_diff_of_mappings_hides_by_name() -> None:
    said = changes.diff_text({"before": {"mode": "0644"}, "after": {"mode": "0600", "db_password": TOKEN}})
    assert '+ "mode": "0600"' in said
    assert TOKEN not in said


# --- what is kept of the command ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_", "kept"),
    [
        (
            ["/x/ansible-playbook", "site.yml", "-e", f"a={TOKEN} b=2"],
            ["ansible-playbook", "site.yml", "-e", "a=... b=..."],
        ),
        (["p", f"-ea={TOKEN}"], ["p", "-ea=..."]),
        (["p", f"--extra-vars=a={TOKEN}"], ["p", "--extra-vars=a=..."]),
        (["p", "-e", f'{{"a": "{TOKEN}"}}'], ["p", "-e", "{...}"]),
        (["p", "-e", "@site.yml", "--limit", "n1"], ["p", "-e", "@site.yml", "--limit", "n1"]),
        (["p", "--become-password-file", "f"], ["p", "--become-password-file", HIDDEN]),
    ],
)
def test_the_command_line_is_kept_without_values(given_: list[str], kept: list[str]) -> None:
    assert record.command_line(given_, ()) == kept


def test_every_override_is_named_and_ours_keep_their_value() -> None:
    given_ = {"max_num_seqs": 4, "site_thing": TOKEN, "container_env": {"X": "1", "HF_TOKEN": TOKEN}}
    shown, hidden = record.overrides(given_, {"max_num_seqs", "container_env"}, ())
    assert shown == {
        "max_num_seqs": 4,
        "site_thing": record.UNRECORDED,
        "container_env": {"X": "1", "HF_TOKEN": HIDDEN},
    }
    assert hidden == ["container_env", "site_thing"]
