# Sourced by the scripts beside it: a virtual environment in .venv with the extras they name, made or brought up to date.
set -euo pipefail
# Nothing is compiled as it is installed: what is imported is compiled then, once, and that is a fifth of it all.
unset PYTHONDONTWRITEBYTECODE
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }

# setup EXTRAS: EXTRAS is a comma-separated list of this project's extras.
everything=plan,train,test,tools
setup() {
    local python=${PYTHON:-python3.11}
    command -v "$python" >/dev/null || python=python3
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
        echo "Python 3.11 or newer is needed, and $("$python" --version) was found; set PYTHON to another one." >&2
        exit 2
    }
    local stamp=".venv/installed-$1"
    # pip comes last: without it, the making was interrupted.
    if [ ! -x .venv/bin/python ] || [ ! -x .venv/bin/pip ]; then
        say "Making a virtual environment in .venv"
        "$python" -m venv .venv
    fi
    if [ ! -e "$stamp" ] || [ pyproject.toml -nt "$stamp" ] || [ scripts/constraints.txt -nt "$stamp" ]; then
        say "Installing recycle with: $1 (a minute or two the first time)"
        .venv/bin/python -m pip install --disable-pip-version-check --progress-bar on --no-compile \
            --constraint scripts/constraints.txt --editable ".[$1]"
        # From this release on the package carries Megatron's training code, which the tests of the flag need.
        [[ ",$1," != *,test,* ]] || install_megatron 0.17.1
        touch "$stamp"
    fi
    export PATH="$PWD/.venv/bin:$PATH"
}

# all_together COMMAND ...: each takes one core, so all are run at the same time; what they print comes in their order.
all_together() {
    local logs status=0 number running=()
    logs=$(mktemp -d)
    for command in "$@"; do
        $command >"$logs/${#running[@]}" 2>&1 &
        running+=($!)
    done
    for number in "${!running[@]}"; do
        wait "${running[number]}" || status=1
        cat "$logs/$number"
    done
    rm -r "$logs"
    return "$status"
}

# install_megatron RELEASE [OPTION ...]: it says that it needs Python 3.12, and works with 3.11 as well.
install_megatron() {
    .venv/bin/python -m pip install --disable-pip-version-check --quiet --no-compile --no-deps \
        --ignore-requires-python "megatron-core==$1" "${@:2}"
}

# setup_releases RELEASE ...: other releases of Megatron, each in a folder that goes before .venv on PYTHONPATH.
setup_releases() {
    local release folder
    for release in "$@"; do
        folder=.megatron-$release
        [ -e "$folder/installed" ] && continue
        say "Installing megatron-core $release in $folder"
        # What is compiled while tests run must do so without a warning.
        if install_megatron "$release" --compile --target "$folder"; then
            touch "$folder/installed"
        else
            echo "megatron-core $release does not install here: its tests are left out." >&2
        fi
    done
}
