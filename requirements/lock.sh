#!/usr/bin/env bash
# Write requirements/*.txt: the dependencies of pyproject.toml with pinned versions and hashes of wheels, for every
# supported Python and system. Versions within the bounds are kept; --upgrade takes newer ones. It uses uv, because
# pip-compile resolves only for the machine that it runs on.
set -euo pipefail
cd "$(dirname "$0")/.."

# torch and the dependencies of its CUDA build are installed from requirements/torch.txt.
torch=(torch triton cuda-bindings cuda-pathfinder cuda-toolkit)
torch+=(nvidia-{cublas,cuda-cupti,cuda-nvrtc,cuda-runtime,cudnn-cu13,cufft,cufile,curand,cusolver,cusparse})
torch+=(nvidia-{cusparselt-cu13,nccl-cu13,nvjitlink,nvshmem-cu13,nvtx})

options=(--universal --python-version 3.11.5 --no-build --generate-hashes --no-annotate --quiet "$@")
options+=(--constraint requirements/torch.txt --custom-compile-command "make requirements")
options+=("${torch[@]/#/--no-emit-package=}")

"${UV:-uv}" pip compile pyproject.toml --extra minilm --extra dev "${options[@]}" --output-file requirements/dev.txt
# lock NAME EXTRA ...: optional dependencies, with the versions of dev.txt for packages in both.
lock() {
    local name=$1
    python3 -c 'import sys, tomllib
extras = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]
print(*(line for name in sys.argv[1:] for line in extras[name]), sep="\n")' "${@:2}" |
        "${UV:-uv}" pip compile - --constraint requirements/dev.txt "${options[@]}" \
            --output-file "requirements/$name.txt"
}
lock docs docs
lock quality quality
lock dist dist
lock other sentencepiece notebooks onnx
