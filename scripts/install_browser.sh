#!/bin/sh
# A Chromium for the test of the live page, where one can be had without asking: as root, with apt-get.
# Never fails: without a browser that one test is skipped and says so.
for name in chromium chromium-browser google-chrome; do
    command -v "$name" >/dev/null 2>&1 && exit 0
done
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "No Chromium here, and none can be installed; the browser test will be skipped."
    exit 0
fi
echo "Installing Chromium for the test of the live page."
export DEBIAN_FRONTEND=noninteractive
(timeout 120 apt-get -qq update && timeout 300 apt-get -qq install -y --no-install-recommends chromium) >/dev/null 2>&1 ||
    echo "Chromium could not be installed; the browser test will be skipped."
exit 0
