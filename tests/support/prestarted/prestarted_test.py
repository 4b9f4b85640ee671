"""A process that prestarted.py makes is in nothing but its start different from one that is executed.

Guards: arguments, variables, folder, standard streams and other files of a process; its exit status, also after a signal; a
command that takes too long; a program that executes itself; tests that would pass whatever the program does.

Usage: prestarted_test.py PROGRAM, what prestarted_program.c makes. Standard library only.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM = str(pathlib.Path(sys.argv.pop(1)).resolve())
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import prestarted  # noqa: E402


class Prestarted(unittest.TestCase):
    def setUp(self):
        self.assertTrue(os.environ.get("PRESTARTED"), "the variable is set by ctest")
        self.kept = os.open(os.devnull, os.O_RDONLY)  # a file that no process shall inherit
        os.set_inheritable(self.kept, True)
        self.addCleanup(os.close, self.kept)

    def both(self, *words, **options) -> subprocess.CompletedProcess:
        """What the process says and how it ends, which is the same when it is executed."""
        made = prestarted.run([PROGRAM, *words], **options)
        if "input" not in options:
            options["stdin"] = subprocess.DEVNULL
        executed = subprocess.run([PROGRAM, *words], **options)
        self.assertEqual((made.returncode, made.stdout, made.stderr), (executed.returncode, executed.stdout, executed.stderr))
        return made

    def test_arguments_variables_folder_and_streams(self):
        with tempfile.TemporaryDirectory() as folder:
            done = self.both("tell", "two words", "", cwd=folder, env={"A": "1", "B": "x=y"}, input="given\n", text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertEqual(done.stdout, f"tell|two words||\nA=1\nB=x=y\n{os.path.realpath(folder)}\ngiven\nfiles 0 1 2\n")
        self.assertEqual(done.stderr, "an error\n")
        self.assertIn("an error\n", self.both("tell", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={}).stdout)

    def test_exit_status_and_signals(self):
        for word, status in (("0", 0), ("3", 3), ("kill", -9)):
            self.assertEqual(self.both("end", word, capture_output=True).returncode, status)
        with self.assertRaises(subprocess.CalledProcessError):
            prestarted.run([PROGRAM, "end", "3"], check=True)

    def test_a_process_that_takes_too_long_is_killed(self):
        began = time.monotonic()
        with self.assertRaises(subprocess.TimeoutExpired) as ended:
            prestarted.run([PROGRAM, "sleep"], timeout=0.3, stdout=subprocess.PIPE, text=True)
        self.assertLess(time.monotonic() - began, 20)
        self.assertEqual(ended.exception.output, "asleep\n")

    def test_a_program_that_executes_itself_begins_anew(self):
        done = self.both("again", stdout=subprocess.PIPE, text=True)
        self.assertEqual(done.stdout, "tell|from itself|\nC=2\n" + os.getcwd() + "\nfiles 0 1 2\n")

    def test_what_comes_before_main_happens_once(self):
        first, second = (prestarted.run([PROGRAM, "born"], stdout=subprocess.PIPE).stdout for _ in range(2))
        self.assertEqual(first, second)
        executed = subprocess.run([PROGRAM, "born"], stdout=subprocess.PIPE).stdout
        self.assertNotEqual(first, executed)


if __name__ == "__main__":
    unittest.main()
