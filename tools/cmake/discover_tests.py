"""Registers every case of a Catch2 executable with ctest, one test each.

Usage: discover_tests.py EXECUTABLE NAME TIMEOUT SERIAL TOGETHER LABELS OUT. Writes OUT, a script that
ctest reads: the test "NAME: case" runs that case in a process of its own, ends after TIMEOUT seconds and
carries LABELS; SERIAL (0 or 1): beside no other test. With 0 only the cases that have the tag
[serial] run beside no other. TOGETHER (0 or 1): the test "NAME: file" runs all cases of a source file in
one process, but for those with the tag [serial], and prints their names. Run after each link of the
executable.
Catch2's own script splits a case's name at a semicolon.
"""

import pathlib
import re
import subprocess
import sys


def bracket(text: str) -> str:
    """A CMake argument that stands for `text` whatever characters it has."""
    return f"[==[{text}]==]"


def test_spec(case: str) -> str:
    """The argument that makes Catch2 run `case` alone."""
    escaped = case.replace("\\", "\\\\")
    for special in ',[]"':
        escaped = escaped.replace(special, "\\" + special)
    # At the beginning it would mean "all but".
    return "\\" + escaped if escaped.startswith("~") else escaped


def cases_of(executable: str, *spec: str) -> list[str]:
    """Names of the cases, of those that match `spec`."""
    # Catch2 2 answers with the number of cases as its exit status, and hides [.] unless they are named.
    listing = subprocess.run([executable, *spec, "--list-test-names-only"], capture_output=True, text=True, timeout=120)
    return [line for line in listing.stdout.splitlines() if line]


def files_of(executable: str) -> dict[str, str]:
    """Specs of the cases that a source file's test runs, by the file's name."""
    tags = subprocess.run([executable, "-#", "--list-tags"], capture_output=True, text=True, timeout=120).stdout
    specs = {file: f"[#{file}]~[.]~[serial]" for file in re.findall(r"\[#([^\]]+)\]", tags)}
    return {file: spec for file, spec in specs.items() if cases_of(executable, "-#", spec)}


def main() -> int:
    if len(sys.argv) != 8:
        print(__doc__, file=sys.stderr)
        return 2
    executable, name, timeout, serial, together, labels, out = sys.argv[1:]
    cases = cases_of(executable)
    if not cases:
        print(f"{executable} listed no cases", file=sys.stderr)
        return 1
    alone = set(cases_of(executable, "[serial]"))
    tests = {case: [test_spec(case)] for case in cases}
    if together == "1":
        tests = {file: ["-#", "-d", "yes", spec] for file, spec in files_of(executable).items()}
        tests |= {case: [test_spec(case)] for case in cases if case in alone}
    script = []
    for title, arguments in tests.items():
        test = bracket(f"{name}: {title}")
        script.append(f"add_test({test} {' '.join(bracket(word) for word in [executable, *arguments])})")
        script.append(f"set_tests_properties({test} PROPERTIES TIMEOUT {timeout} COST {timeout} "
                      f"RUN_SERIAL {int(serial == '1' or title in alone)} LABELS {bracket(labels)})")
    pathlib.Path(out).write_text("\n".join(script) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
