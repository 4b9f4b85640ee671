"""The arguments that tools/cmake/discover_tests.py makes for ctest: each runs the case that it names, and no other.

Guards: a name that Catch2 reads as something else, so that ctest runs all other cases in its place and reports "passed".

Usage: discover_tests_test.py EXECUTABLE, a Catch2 program with a case whose name begins with "~". Standard library only.
"""

import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXECUTABLE = sys.argv.pop(1)
sys.path.insert(0, str(ROOT / "tools/cmake"))
from discover_tests import cases_of, test_spec  # noqa: E402


class DiscoverTests(unittest.TestCase):
    def test_an_argument_runs_its_case_alone(self):
        cases = cases_of(EXECUTABLE)
        self.assertTrue(any(case.startswith("~") for case in cases), cases)
        for case in cases:
            with self.subTest(case):
                self.assertEqual(cases_of(EXECUTABLE, test_spec(case)), [case])


if __name__ == "__main__":
    unittest.main()
