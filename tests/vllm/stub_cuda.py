#!/usr/bin/env python3
"""Writes stub libraries in place of the GPU libraries that the published torch wheel links against.

usage: stub_cuda.py SITE_PACKAGES

On a machine without a GPU none of their functions is ever called, but the loader wants the files, the version tags and
the symbols. Every stub function returns 1, an error code in all of these interfaces. The stubs are made on the spot from
what torch's own libraries ask for; they are not distributed.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

# Libraries that the system or torch itself provides.
SYSTEM = re.compile(r"^(libc|libm|libdl|librt|libpthread|libgcc_s|libstdc\+\+|ld-linux-x86-64|libgomp|libcuda)\.so")

# Symbols without a version tag are told apart by prefix.
PREFIXES = {
    "libcublas.so": r"^cublas(?!Lt)",
    "libcublasLt.so": r"^cublasLt",
    "libcudnn.so": r"^cudnn",
    "libcufft.so": r"^cufft",
    "libcufile.so": r"^cuFile",
    "libcurand.so": r"^curand",
    "libcusolver.so": r"^cusolver",
    "libcusparse.so": r"^cusparse(?!Lt)",
    "libcusparseLt.so": r"^cusparseLt",
    "libnccl.so": r"^p?nccl",
    "libnvrtc.so": r"^nvrtc",
    "libnvshmem_host.so": r"^nvshmem",
    "libnvToolsExt.so": r"^nvtx",
}


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def missing_libraries(libraries: list[Path], present: set[str]) -> dict[str, set[str]]:
    """Library name -> version tags wanted of it, for every needed library that nobody provides."""
    wanted: dict[str, set[str]] = {}
    for library in libraries:
        for name in re.findall(r"NEEDED\).*\[(.*?)\]", run("readelf", "-dW", str(library))):
            if name not in present and not SYSTEM.match(name):
                wanted.setdefault(name, set())
        current = None
        for line in run("readelf", "-VW", str(library)).splitlines():
            if found := re.search(r"File: (\S+)", line):
                current = found.group(1)
            elif (found := re.search(r"Name: (\S+)", line)) and current in wanted:
                wanted[current].add(found.group(1))
    return wanted


def undefined_symbols(libraries: list[Path]) -> dict[str, str | None]:
    """Symbol -> version tag for every symbol that some library expects from another."""
    symbols: dict[str, str | None] = {}
    for library in libraries:
        for line in run("readelf", "-sW", "--dyn-syms", str(library)).splitlines():
            fields = line.split()
            if len(fields) >= 8 and fields[6] == "UND":
                name, _, version = fields[7].partition("@")
                symbols[name] = version or None
    return symbols


def write_stub(out: Path, name: str, versions: set[str], symbols: dict[str, str | None]) -> int:
    prefix = PREFIXES.get(name.split(".so")[0] + ".so")
    mine: dict[str, str | None] = {}
    for symbol, version in symbols.items():
        if version in versions:
            mine[symbol] = version
        elif prefix and re.match(prefix, symbol):
            mine.setdefault(symbol, None)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "stub.c")
        source.write_text("".join(f"int {symbol}(void) {{ return 1; }}\n" for symbol in sorted(mine)))
        command = ["gcc", "-shared", "-fPIC", "-O1", "-w", f"-Wl,-soname,{name}", "-o", str(out / name), str(source)]
        if versions:
            script = Path(folder, "stub.map")
            blocks = []
            for tag in sorted(versions):
                tagged = "".join(f" {symbol};" for symbol in sorted(mine) if mine[symbol] == tag)
                blocks.append(f"{tag} {{ global:{tagged} }};\n" if tagged else f"{tag} {{ }};\n")
            script.write_text("".join(blocks))
            command.insert(1, f"-Wl,--version-script={script}")
        subprocess.run(command, check=True)
    return len(mine)


def main() -> None:
    packages = Path(sys.argv[1])
    libraries = [path for path in (packages / "torch/lib").iterdir() if ".so" in path.name]
    out = packages / "nvidia/cu13/lib"
    out.mkdir(parents=True, exist_ok=True)
    present = {path.name for path in libraries} | {path.name for path in out.iterdir()}
    symbols = undefined_symbols(libraries)
    wanted = missing_libraries(libraries, present)
    count = sum(write_stub(out, name, versions, symbols) for name, versions in sorted(wanted.items()))
    print(f"stubs: {len(wanted)} libraries, {count} symbols")


if __name__ == "__main__":
    main()
