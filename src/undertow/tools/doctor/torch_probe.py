"""Script of the child process that imports torch and lists its devices.

In: nothing.  Out: one line of JSON on stdout, or a traceback and an exit code.
"""

from __future__ import annotations

import json


def main() -> None:
    import torch

    import undertow.torch  # noqa: F401  imports all of torch that training needs

    kind = "cuda" if torch.cuda.is_available() else "xpu" if _has("xpu") else "mps" if _has("mps") else ""
    devices = [kind]
    if kind == "cuda":
        devices = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "ROCm" if torch.version.hip else "CPU build"
    answer = {"threads": torch.get_num_threads(), "devices": devices if kind else [], "build": build}
    print(json.dumps(answer))


def _has(name: str) -> bool:
    import torch

    module = getattr(torch, name, None)
    return module is not None and hasattr(module, "is_available") and bool(module.is_available())


if __name__ == "__main__":
    main()
