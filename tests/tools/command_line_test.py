"""Help, version, manual page, completion and installation of the program.

Guards: a command without an example, or whose example names an option that does not exist; a version that does not tell
builds apart; a manual page that man complains about; completion that does not offer what the program takes; an installation
that lacks a file or does not find its own.

Usage: command_line_test.py RINGSIDE CMAKE. Standard library, bash, zsh; man where it is installed.
"""

import os
import pathlib
import pty
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CMAKE = sys.argv.pop(2)
RINGSIDE = pathlib.Path(sys.argv.pop(1)).resolve()
sys.path.insert(0, str(ROOT / "tests/support/prestarted"))
import prestarted  # noqa: E402


def zsh_completions(script: str, lines: list[str]) -> list[str]:
    """What an interactive zsh makes of each line when TAB is pressed at its end."""
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "_ringside").write_text(script)
        found = pathlib.Path(folder) / "found"
        found.touch()
        pid, terminal = pty.fork()
        if pid == 0:
            os.chdir(folder)
            os.execvpe("zsh", ["zsh", "-f", "-i"], os.environ | {"TERM": "dumb", "PS1": ""})

        def type_and_wait(text: str) -> None:  # every text ends by one line more in `found`
            before, deadline = len(found.read_text().splitlines()), time.monotonic() + 30
            os.write(terminal, text.encode())
            while len(found.read_text().splitlines()) == before:
                if time.monotonic() > deadline:
                    raise AssertionError(f"zsh does not answer {text!r}")
                if select.select([terminal], [], [], 0.02)[0]:
                    os.read(terminal, 65536)

        try:
            type_and_wait(f"fpath=({folder} $fpath); autoload -Uz compinit; compinit -u -D; setopt no_beep; print ready >> {found}\n")
            type_and_wait(f"ended() {{ print -r -- \"$BUFFER\" >> {found}; BUFFER= }}; zle -N ended; bindkey '^X' ended; "
                          f"bindkey '^I' complete-word; print ready >> {found}\n")
            for line in lines:
                type_and_wait(line + "\t\x18")
        finally:
            os.close(terminal)  # a hangup ends the shell
            os.waitpid(pid, 0)
        return found.read_text().splitlines()[2:]


def run(*words, cwd=None, check: bool = True, **options) -> str:
    runner = prestarted.run if words[0] == RINGSIDE else subprocess.run
    done = runner([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120,
                  cwd=cwd, check=False, **options)
    text = done.stdout.decode()
    if check and done.returncode != 0:
        raise AssertionError(f"{words} exits with {done.returncode}: {text}")
    return text


def commands() -> list[str]:
    listed = run(RINGSIDE, "--help").split("Subcommands:")[1]
    return re.findall(r"^  (\w+)  ", listed, re.M)


class CommandLine(unittest.TestCase):
    def test_every_command_has_examples_with_options_that_exist(self):
        self.assertGreater(len(commands()), 11)
        for command in commands():
            with self.subTest(command=command):
                text = run(RINGSIDE, command, "--help")
                self.assertIn("Examples:\n", text)
                options, examples = text.split("Examples:\n")
                self.assertIn(f"ringside {command}", examples)
                own = [line.split(f"ringside {command}")[1] for line in examples.splitlines() if f"ringside {command}" in line]
                for option in re.findall(r"(?<!\S)--[a-z-]+", " ".join(own)):
                    self.assertRegex(options, rf"{option}\b")

    def test_help_and_manual_name_the_exit_code_of_sigterm(self):
        self.assertIn("143 for SIGTERM", run(RINGSIDE, "--help"))
        self.assertIn("143 for SIGTERM", run(RINGSIDE, "man"))

    def test_the_version_names_commit_and_torch(self):
        text = run(RINGSIDE, "--version")
        self.assertRegex(text, r"torch: built with \d+\.\d+\.\d+, running with \d+\.\d+\.\d+")
        if (ROOT / ".git").exists():
            self.assertRegex(text, r"^ringside \d+\.\d+\.\d+ \(commit [0-9a-f]{12}\+?\)\n")

    def test_the_manual_page_has_every_command_and_option(self):
        page = run(RINGSIDE, "man")
        for command in commands():
            self.assertIn(f".SS ringside {command}", page)
        for option in ("--dry\\-run", "--json\\-schema", "--accept\\-changes"):
            self.assertIn(option.replace("--", "\\-\\-"), page)
        if shutil.which("man"):
            text = run("man", "--warnings", "-l", "-", input=page.encode(), env={**os.environ, "MANWIDTH": "100", "LC_ALL": "C"})
            self.assertNotIn("warning", text)
            self.assertIn("EXIT STATUS", text)

    def complete(self, *words: str) -> list[str]:
        script = run(RINGSIDE, "completion", "bash")
        quoted = " ".join(f"'{word}'" for word in ("ringside", *words))
        call = (f"{script}\nCOMP_WORDS=({quoted}); COMP_CWORD={len(words)}; _ringside; printf '%s\\n' \"${{COMPREPLY[@]}}\"")
        return run("bash", "-c", call).split()

    def test_bash_completes_commands_options_and_keys(self):
        self.assertEqual(sorted(self.complete("")), sorted([*commands(), "--help", "--version"]))
        self.assertEqual(self.complete("ro"), ["rollout"])
        self.assertEqual(self.complete("run", "--dry"), ["--dry-run"])
        self.assertEqual(self.complete("check", "r.yaml", "rollout.group"), ["rollout.group_size="])
        self.assertEqual(self.complete("keygen", "rollout.group"), [])  # files, by -o default
        self.assertEqual(self.complete("check", ""), [])

    def test_zsh_completion_names_every_command_and_option(self):
        text = run(RINGSIDE, "completion", "zsh")
        self.assertTrue(text.startswith("#compdef ringside\n"))
        for part in ("'--dry-run[", "check)", "rollout.group_size="):
            self.assertIn(part, text)

    def test_zsh_completes_commands_options_and_keys(self):
        self.assertIsNotNone(shutil.which("zsh"), "zsh is missing; tools/setup.sh installs it")
        lines = {"ringside ro": "ringside rollout ", "ringside run --dry": "ringside run --dry-run ",
                 "ringside check r.yaml rollout.group": "ringside check r.yaml rollout.group_size=",
                 "ringside keygen rollout.group": "ringside keygen rollout.group", "ringside eval --outp": "ringside eval --output "}
        self.assertEqual(zsh_completions(run(RINGSIDE, "completion", "zsh"), list(lines)), list(lines.values()))

    def test_an_installation_is_whole_and_finds_its_files(self):
        with tempfile.TemporaryDirectory() as folder:
            prefix = pathlib.Path(folder) / "usr"
            run(CMAKE, "--install", RINGSIDE.parent, "--prefix", prefix, "--component", "ringside")
            for path in ("bin/ringside", "share/man/man1/ringside.1", "share/bash-completion/completions/ringside",
                         "share/zsh/site-functions/_ringside", "share/ringside/configs/defaults.yaml",
                         "share/ringside/recipes/quickstart/grpo.yaml"):
                self.assertTrue((prefix / path).stat().st_size > 0, path)
            program = prefix / "bin/ringside"
            self.assertEqual((prefix / "share/man/man1/ringside.1").read_text(), run(program, "man"))
            text = run(program, "check", "quickstart/grpo.yaml", cwd=folder, check=False)
            self.assertIn("share/ringside/recipes/quickstart/grpo.yaml:8", text)
            text = run(program, "run", "quickstart/grpo.yaml", "--dry-run", cwd=folder)
            self.assertIn("dry run passed", text)


if __name__ == "__main__":
    unittest.main()
