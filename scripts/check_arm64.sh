#!/bin/sh
# Are there wheels for the robot's side on arm64? Asks the package index for Python 3.10 to 3.13, with numpy 1.26 and the
# newest; downloads into a folder that is removed. Exit code 1 where one is missing.
cd "$(dirname "$0")/.." || exit 2
python=.venv/bin/python
[ -x "$python" ] || python=python3
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
missing=0
# Not 3.13 with numpy 1.26: numpy has wheels for it from 2.1 on.
for pair in "3.10 numpy==1.26.*" "3.11 numpy==1.26.*" "3.12 numpy==1.26.*" \
    "3.10 numpy" "3.11 numpy" "3.12 numpy" "3.13 numpy"; do
    version=${pair%% *}
    numpy=${pair#* }
    if "$python" -m pip download --quiet --disable-pip-version-check --dest "$folder" --only-binary=:all: \
        --platform manylinux2014_aarch64 --platform manylinux_2_17_aarch64 --platform manylinux_2_28_aarch64 \
        --python-version "$version" --implementation cp "$numpy" "safetensors>=0.5" "eclipse-zenoh>=1.5" \
        2>"$folder/errors"; then
        echo "Python $version, $numpy: $(ls "$folder" | grep -c aarch64) wheels for arm64"
    else
        echo "Python $version, $numpy: MISSING: $(grep -m 1 ERROR "$folder/errors")"
        missing=1
    fi
    rm -f "$folder"/*
done
exit $missing
