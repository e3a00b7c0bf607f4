#!/bin/sh
# Makes sure that these Debian packages' programs are there: sh deploy/install_packages.sh [--optional] PACKAGE...
# Root on Debian or Ubuntu gets what is missing installed, without its services started; others are told what to install.
# Exit status 1 if something is still missing, unless --optional comes first.
set -eu
PATH="$PATH:/usr/sbin:/sbin" # where nginx is, which not everybody's PATH has

optional=no
if [ "${1:-}" = --optional ]; then
    optional=yes
    shift
fi

is_there() {
    case "$1" in
        libnginx-mod-http-js)
            for folder in /usr/share/nginx/modules /usr/lib/nginx/modules /usr/lib64/nginx/modules; do
                [ ! -e "$folder/ngx_http_js_module.so" ] || return 0
            done
            return 1
            ;;
        redis-tools) command -v redis-cli >/dev/null ;;
        *) command -v "$1" >/dev/null ;;
    esac
}

still_missing() {
    for package in "$@"; do
        is_there "$package" || printf ' %s' "$package"
    done
}

# Installing must start no daemon: the ports are not ours to take.
install_quietly() {
    policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
        trap 'rm -f "$policy"' EXIT
        trap 'exit 1' HUP INT TERM
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod +x "$policy"
    fi
    export DEBIAN_FRONTEND=noninteractive
    apt-get -o DPkg::Lock::Timeout=300 update -qq </dev/null >/dev/null || return 1
    apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends "$@" </dev/null >/dev/null
}

missing=$(still_missing "$@")
[ -n "$missing" ] || exit 0

if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    echo "Installing$missing"
    # shellcheck disable=SC2086 # names of packages, one word each
    install_quietly $missing || true
    missing=$(still_missing "$@")
    [ -n "$missing" ] || exit 0
    echo "could not be installed:$missing; try: apt-get install$missing" >&2
else
    echo "missing:$missing; install with: sudo apt-get install$missing" >&2
fi
[ "$optional" = yes ]
