#!/bin/sh
# Tests and benchmarks of the state store need a real redis-server. Root on Debian or Ubuntu gets it installed, others are
# told what to install; that fails unless the argument is "optional".
set -eu

command -v redis-server >/dev/null && exit 0

if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "redis-server is missing, which the tests need: sudo apt-get install redis-server" >&2
    [ "${1:-}" = optional ]
    exit
fi

echo "Installing redis-server"
if ! { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends redis-server; } \
    </dev/null >/dev/null; then
    echo "redis-server could not be installed, which the tests need: apt-get install redis-server" >&2
    [ "${1:-}" = optional ]
fi
