#!/usr/bin/env bash
# What CI runs, in order: quick checks first, then tests that share nothing in parallel, then those that
# start whole stacks or need the engine, one at a time. Says what it starts; passes nothing over in silence.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=.venv/bin
unset PYTHONDONTWRITEBYTECODE
say() { printf '\n== %s\n' "$*"; }
run() {
    local started=$SECONDS
    say "$1"
    shift
    "$@"
    echo "== took $((SECONDS - started)) s"
}

# A box's set-up needs these; CI's machine may be bare.
if [ "$(id -u)" = 0 ]; then
    run "system packages for boxes" bash tests/setup_system.sh
fi
left_out=()
# `make test-full` adds what takes too long for every run.
markers="not bench and not full"
if [ "${1:-}" = --full ]; then markers="not bench"; fi
if [ "${CI:-}" = true ] && [ "$(id -u)" = 0 ]; then
    run "a Docker engine and base images (tests/setup_docker.sh)" bash tests/setup_docker.sh
fi
if ! docker info >/dev/null 2>&1; then
    markers="$markers and not docker"
    left_out+=("tests marked docker: no engine answers; run \`make setup-docker\` as root")
fi
if ! { [ -r /dev/net/tun ] && [ -w /dev/net/tun ]; }; then
    markers="$markers and not tun"
    left_out+=("tests marked tun: this user may not open /dev/net/tun")
fi
if [ "$(id -u)" != 0 ]; then
    markers="$markers and not root"
    left_out+=("tests marked root: this user is not root")
fi

run "ruff" $bin/ruff check .
run "ruff format" $bin/ruff format --check .
run "pyright" $bin/pyright
run "quick tests, two at a time" $bin/pytest -q -n 2 --dist loadfile -m "$markers and not stack and not docker" --durations 10
case $markers in
*"not docker"*) ;;
*) run "tests on the Docker engine" $bin/pytest -q -m "$markers and docker and not stack" --durations 10 ;;
esac
# A file has its stack to itself; two at a time, since most of their time is waiting.
run "tests on whole stacks, two files at a time" $bin/pytest -q -n 2 --dist loadfile -m "$markers and stack" --durations 10

say "left out: ${left_out[*]:-nothing}"
echo "== make test took $((SECONDS / 60)) min $((SECONDS % 60)) s"
