#!/bin/sh
# Makes .venv in the checkout. Says what to install where it cannot.
set -eu
python=${PYTHON:-python3}
cd "$(dirname "$0")/.."

say() { echo "setup: $*" >&2; exit 1; }

command -v "$python" >/dev/null 2>&1 || say "no $python. Install it: apt-get install python3 python3-venv"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    say "$("$python" --version) is too old; Python 3.11 or later is needed (make PYTHON=python3.12 ...)"
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 ||
        say "$python has no venv module. Install it: apt-get install python3-venv"
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv
fi
[ -x .venv/bin/python ] || "$python" -m venv .venv
echo "setup: installing the controller's packages into .venv"
.venv/bin/python -m pip install --quiet --disable-pip-version-check -r requirements.txt -e .
