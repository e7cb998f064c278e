#!/bin/sh
# Everything that must hold before a change lands: lint, format, types and tests. Types are checked while the tests run.
# Arguments go to pytest.
cd "$(dirname "$0")/.." || exit 2
bin=.venv/bin
# Two workers and some hundred processes import the same modules: let Python keep what it has compiled.
unset PYTHONDONTWRITEBYTECODE
$bin/ruff check . || exit 1
$bin/ruff format --check --quiet . || { echo "Not formatted as above: \`make format\` does it."; exit 1; }
types=$(mktemp)
trap 'rm -f "$types"' EXIT
trap 'kill "$checker" 2>/dev/null; exit 130' INT TERM
nice $bin/pyright >"$types" 2>&1 &
checker=$!
$bin/python -m pytest "$@"
tests=$?
wait "$checker"
typed=$?
echo
echo "pyright: $(tail -n 1 "$types")"
[ "$typed" -eq 0 ] || cat "$types"
[ "$tests" -eq 0 ] || echo "The tests failed: see above."
[ "$tests" -eq 0 ] && [ "$typed" -eq 0 ]
