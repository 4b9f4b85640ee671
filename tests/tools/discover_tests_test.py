"""The arguments that tools/cmake/discover_tests.py makes for ctest: each runs the case that it names, and no other; those for
whole files run every case once, and no hidden one.

Guards: a name that Catch2 reads as something else, so that ctest runs all other cases in its place and reports "passed"; a
case that no file's test runs; a long grid for use by hand that a file's test runs.

Usage: discover_tests_test.py EXECUTABLE HIDDEN, Catch2 programs: one with a case whose name begins with "~", one with hidden
cases. Standard library only.
"""

import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXECUTABLE, HIDDEN = sys.argv.pop(1), sys.argv.pop(1)
sys.path.insert(0, str(ROOT / "tools/cmake"))
from discover_tests import cases_of, files_of, test_spec  # noqa: E402


class DiscoverTests(unittest.TestCase):
    def test_an_argument_runs_its_case_alone(self):
        cases = cases_of(EXECUTABLE)
        self.assertTrue(any(case.startswith("~") for case in cases), cases)
        for case in cases:
            with self.subTest(case):
                self.assertEqual(cases_of(EXECUTABLE, test_spec(case)), [case])

    def test_files_run_every_case_once_and_no_hidden_one(self):
        self.assertTrue(cases_of(HIDDEN, "[.]"))
        for executable in (EXECUTABLE, HIDDEN):
            cases = [case for spec in files_of(executable).values() for case in cases_of(executable, "-#", spec)]
            alone = cases_of(executable, "~[.][serial]")
            self.assertEqual(sorted(cases + alone), sorted(cases_of(executable)))


if __name__ == "__main__":
    unittest.main()
