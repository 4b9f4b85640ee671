"""Registers every case of a Catch2 executable with ctest, one test each.

Usage: discover_tests.py EXECUTABLE NAME TIMEOUT SERIAL LABELS OUT. Writes OUT, a script that ctest
reads: the test "NAME: case" runs that case in a process of its own, ends after TIMEOUT seconds and
carries LABELS; SERIAL (0 or 1): beside no other test. With 0 only the cases that have the tag
[serial] run beside no other. Run after each link of the executable.
Catch2's own script splits a case's name at a semicolon.
"""

import pathlib
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


def main() -> int:
    if len(sys.argv) != 7:
        print(__doc__, file=sys.stderr)
        return 2
    executable, name, timeout, serial, labels, out = sys.argv[1:]
    cases = cases_of(executable)
    if not cases:
        print(f"{executable} listed no cases", file=sys.stderr)
        return 1
    alone = set(cases if serial == "1" else cases_of(executable, "[serial]"))
    script = []
    for case in cases:
        test = bracket(f"{name}: {case}")
        script.append(f"add_test({test} {bracket(executable)} {bracket(test_spec(case))})")
        script.append(f"set_tests_properties({test} PROPERTIES TIMEOUT {timeout} COST {timeout} "
                      f"RUN_SERIAL {int(case in alone)} LABELS {bracket(labels)})")
    pathlib.Path(out).write_text("\n".join(script) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
