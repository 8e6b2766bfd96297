#!/bin/bash
# Make .cache/harbor-peer/python, an interpreter that can import the `harbor` package: a peer of the tests,
# never a dependency of ours. Harbor needs Python 3.12 or newer and we run on 3.11, so the interpreter is
# whichever this machine has; where it has none, the newer Debian's own packages are unpacked beside it
# (nothing is installed) and run by their own loader.
# usage: harbor_peer.sh [--without-own-pythons]
set -euo pipefail
cd "$(dirname "$0")/../.."
HARBOR=harbor==0.26.0
PEER=$PWD/.cache/harbor-peer
STAMP="$HARBOR $(sha256sum "$0" | cut -c1-16) ${1:-}"
DEBIAN=trixie
DEBIAN_PYTHON=python3.13

if [ "$(cat "$PEER/stamp" 2>/dev/null)" = "$STAMP" ]; then exit 0; fi
mkdir -p .cache
exec 9>.cache/harbor-peer.lock
flock 9
if [ "$(cat "$PEER/stamp" 2>/dev/null)" = "$STAMP" ]; then exit 0; fi
rm -rf "$PEER"
mkdir -p "$PEER"

own_python() {
    local candidate
    for candidate in python3 python3.1{2,3,4} /opt/python*/bin/python3 ~/.pyenv/versions/3.1[2-9]*/bin/python; do
        candidate=$(command -v "$candidate") || continue
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    return 1
}

debian_python() {
    command -v apt-get >/dev/null || {
        echo "harbor-peer: no Python 3.12 or newer here, and no apt-get to unpack one with" >&2
        exit 1
    }
    local apt=$PEER/apt root=$PEER/root here
    mkdir -p "$apt"/{sources,state/lists/partial,cache/archives/partial} "$root"
    here=$(. /etc/os-release && echo "$VERSION_CODENAME")
    # This machine's own sources, of the newer release.
    cat /etc/apt/sources.list.d/*.sources 2>/dev/null | sed "s/\b$here\b/$DEBIAN/g" >"$apt/sources/newer.sources"
    cat /etc/apt/sources.list 2>/dev/null | sed "s/\b$here\b/$DEBIAN/g" >"$apt/sources/newer.list"
    local options=(-q -y -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$apt/sources"
        -o Dir::State="$apt/state" -o Dir::State::status=/dev/null -o Dir::Cache="$apt/cache"
        -o APT::Sandbox::User="$(id -un)")
    apt-get "${options[@]}" update >&2
    apt-get "${options[@]}" --no-install-recommends --download-only install "$DEBIAN_PYTHON" >&2
    local package
    for package in "$apt"/cache/archives/*.deb; do dpkg-deb -x "$package" "$root"; done
    rm -rf "$apt"
    local libraries
    libraries=$(dirname "$(find "$root/usr/lib" -name 'libc.so.6' | head -1)")
    cat >"$PEER/interpreter" <<SH
#!/bin/sh
export PYTHONHOME='$root/usr'
exec '$(find "$libraries" -name 'ld-linux*.so*' | head -1)' --argv0 "\$0" --library-path '$libraries' \\
    '$root/usr/bin/$DEBIAN_PYTHON' "\$@"
SH
    chmod +x "$PEER/interpreter"
    echo "$PEER/interpreter"
}

if [ "${1:-}" = --without-own-pythons ] || ! python=$(own_python); then python=$(debian_python); fi
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
.venv/bin/uv pip install -q --python .venv/bin/python --python-version "$version" --target "$PEER/site" "$HARBOR"
cat >"$PEER/python" <<SH
#!/bin/sh
export PYTHONPATH='$PEER/site' PYTHONDONTWRITEBYTECODE=1 LITELLM_LOCAL_MODEL_COST_MAP=True
exec '$python' -s "\$@"
SH
chmod +x "$PEER/python"
"$PEER/python" -c 'import harbor'
echo "$STAMP" >"$PEER/stamp"
echo "harbor-peer: $HARBOR on $("$PEER/python" --version) ($python)"
