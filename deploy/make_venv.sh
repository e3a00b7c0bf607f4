#!/bin/sh
# Makes .venv in the current directory with the first usable Python of 3.11 or later.
# Debian and Ubuntu ship Python without its venv part: root gets it installed, others are told what to install.
set -eu

is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }
has_venv() { "$1" -c 'import ensurepip, venv' 2>/dev/null; }
venv_package() { "$1" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'; }

found=""
for name in python3.13 python3.12 python3.11 python3; do
    is_new_enough "$name" || continue
    if has_venv "$name"; then
        found="$name"
        break
    fi
    [ -n "$found" ] || found="$name"
done

if [ -z "$found" ]; then
    echo "kvroute needs Python 3.11 or later; found: $(python3 --version 2>&1 || echo none)" >&2
    exit 1
fi

if ! has_venv "$found"; then
    package=$(venv_package "$found")
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
        echo "$found has no venv module; install it first, for example: sudo apt-get install $package" >&2
        exit 1
    fi
    echo "Installing $package"
    apt-get update -qq </dev/null
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package" </dev/null
fi

echo "Making .venv with $("$found" --version)"
"$found" -m venv --clear .venv
