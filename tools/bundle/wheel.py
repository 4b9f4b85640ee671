"""Packs a folder that tools/bundle.sh filled into a wheel: command `ringside` and the Python client `ringside_bridge`.

Usage: wheel.py STAGE VERSION OUT [SYMBOL ...]
  STAGE   holds bin/with-torch, libexec/, lib/, licenses/, configs/, recipes/, python/ and MANIFEST
  OUT     folder of the wheel
  SYMBOL  versions of the symbols that its files need: GLIBC_2.34, GLIBCXX_3.4.30 ...; they decide the platform tag
Prints the wheel's path. Standard library only.

Formats: packaging.python.org, "Binary distribution format" and "Core metadata specifications". Platform tags: PEP 600.
"""
import base64
import hashlib
import pathlib
import sys
import tomllib
import zipfile

# Newest symbols of the distribution that each tag stands for (auditwheel 6.8, policy/manylinux-policy.json, x86_64).
TAGS = (
    ("manylinux_2_28_x86_64", {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 24), "GCC": (7, 0, 0)}),
    ("manylinux_2_34_x86_64", {"GLIBC": (2, 34), "GLIBCXX": (3, 4, 29), "GCC": (7, 0, 0)}),
    ("manylinux_2_35_x86_64", {"GLIBC": (2, 35), "GLIBCXX": (3, 4, 30), "GCC": (12, 0, 0)}),
    ("manylinux_2_36_x86_64", {"GLIBC": (2, 36), "GLIBCXX": (3, 4, 30), "GCC": (12, 0, 0)}),
)
TORCH = "torch>=2.11,<2.12"
PYARROW = "pyarrow==26.0.1"
# torch needs it too; chat templates are rendered with it.
JINJA = "jinja2"
PACKAGE_FOLDERS = ("bin", "libexec", "lib", "licenses", "configs", "recipes")
DATE = (1980, 1, 1, 0, 0, 0)  # the same bytes from the same files


def platform_tag(symbols: list[str]) -> str:
    """The oldest tag whose distribution has all of these symbols. Raises ValueError naming the first that none has."""
    needed = {}
    for symbol in symbols:
        library, _, version = symbol.partition("_")
        numbers = tuple(int(part) for part in version.split("."))
        needed[library] = max(needed.get(library, ()), numbers)
    for tag, newest in TAGS:
        if all(numbers <= newest[library] for library, numbers in needed.items() if library in newest):
            return tag
    last, newest = TAGS[-1]
    worst = next(library for library, numbers in needed.items() if library in newest and numbers > newest[library])
    raise ValueError(f"a file needs {worst}_{'.'.join(map(str, needed[worst]))}, newer than what {last} has; build on Debian 12")


def client(stage: pathlib.Path) -> dict:
    """The [project] table of the Python client."""
    return tomllib.loads((stage / "python" / "pyproject.toml").read_text())["project"]


def metadata(stage: pathlib.Path, version: str) -> str:
    project = client(stage)
    extras = {"parquet": [PYARROW], **project.get("optional-dependencies", {})}
    lines = ["Metadata-Version: 2.1", "Name: ringside", f"Version: {version}",
             "Summary: Reinforcement-learning post-training of language models with sequence parallelism",
             # An index that honours it refuses the upload: no licence has been chosen, so nobody may publish this.
             "Classifier: Private :: Do Not Upload",
             f"Requires-Python: {project['requires-python']}"]
    lines += [f"Requires-Dist: {one}" for one in [TORCH, JINJA, *project["dependencies"]]]
    for extra, needs in extras.items():
        lines += [f"Provides-Extra: {extra}"] + [f"Requires-Dist: {one}; extra == '{extra}'" for one in needs]
    return "\n".join(lines) + "\nDescription-Content-Type: text/markdown\n\n" + (stage / "README.md").read_text()


def entry_points(stage: pathlib.Path) -> str:
    scripts = ["ringside = ringside.launch:main"]
    if (stage / "libexec" / "ringside_cuda").exists():
        scripts.append("ringside_cuda = ringside.launch:main_cuda")
    text = "[console_scripts]\n" + "\n".join(scripts) + "\n"
    for group, entries in client(stage).get("entry-points", {}).items():
        text += f"\n[{group}]\n" + "".join(f"{name} = {place}\n" for name, place in entries.items())
    return text


def contents(stage: pathlib.Path, version: str) -> dict[str, tuple[bytes, bool]]:
    """Bytes of each file of the wheel, and whether it can be executed; all but dist-info."""
    found = {"ringside/__init__.py": (f'"""Ringside {version}: see `ringside --help`."""\n__version__ = "{version}"\n'.encode(), False),
             "ringside/__main__.py": (b"from ringside.launch import main\n\nmain()\n", False),
             "ringside/launch.py": ((pathlib.Path(__file__).parent / "launch.py").read_bytes(), False),
             "ringside/MANIFEST": ((stage / "MANIFEST").read_bytes(), False)}
    for folder in PACKAGE_FOLDERS:
        for file in sorted((stage / folder).rglob("*")):
            if file.is_file() and not file.is_symlink() and "__pycache__" not in file.parts:
                found[f"ringside/{file.relative_to(stage)}"] = (file.read_bytes(), bool(file.stat().st_mode & 0o111))
    for file in sorted((stage / "python" / "ringside_bridge").rglob("*.py")):
        found[str(file.relative_to(stage / "python"))] = (file.read_bytes(), False)
    return found


def record_line(name: str, data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}\n"


def write_wheel(stage: pathlib.Path, version: str, out: pathlib.Path, symbols: list[str]) -> pathlib.Path:
    tag = f"py3-none-{platform_tag(symbols)}"
    info = f"ringside-{version}.dist-info"
    files = contents(stage, version)
    files[f"{info}/METADATA"] = (metadata(stage, version).encode(), False)
    files[f"{info}/WHEEL"] = (f"Wheel-Version: 1.0\nGenerator: ringside-bundle\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(), False)
    files[f"{info}/entry_points.txt"] = (entry_points(stage).encode(), False)
    record = "".join(record_line(name, data) for name, (data, _) in files.items()) + f"{info}/RECORD,,\n"
    files[f"{info}/RECORD"] = (record.encode(), False)
    path = out / f"ringside-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as wheel:
        for name, (data, executable) in files.items():
            entry = zipfile.ZipInfo(name, DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if executable else 0o100644) << 16
            wheel.writestr(entry, data)
    return path


def main() -> None:
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    try:
        print(write_wheel(pathlib.Path(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3]), sys.argv[4:]))
    except ValueError as error:
        sys.exit(f"wheel: {error}")


if __name__ == "__main__":
    main()
