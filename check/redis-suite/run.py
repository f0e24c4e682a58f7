#!/usr/bin/env python3
"""Runs ten files of Redis' own test suite against the server.

Usage: run.py [--server PROGRAM] [--source REPOSITORY] [--print] [FILE...]

The suite is fetched into target/redis-suite at one commit and runs in its external mode, every
file against a server of its own with an empty directory. docs/guide/redis-suite.md lists the tests
that fail and why. The exit code is 1 if a test fails that the page does not list, or if a test passes
that it lists. Needs git and tclsh. `--print` prints also what listed tests said.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent))
from clients.run import Server  # noqa: E402

PAGE = ROOT / "docs" / "guide" / "redis-suite.md"
SUITE = ROOT / "target" / "redis-suite"
SOURCE = "https://github.com/redis/redis"
# Version 7.2.6, whose behaviour the server follows.
COMMIT = "ae6a2aa95cd094b032e7a69b8b59f64dd1ed085f"
FILES = [
    "unit/type/string", "unit/type/incr", "unit/expire", "unit/keyspace", "unit/scan",
    "unit/multi", "unit/protocol", "unit/info", "unit/introspection", "unit/other",
]
# Seconds that one file may take.
SECONDS_MAX = 600
# Where test_helper.tcl has read its parts and begins to run tests.
BEGIN = "\nif {$::client} {\n"


def fetch(source: str) -> None:
    """Brings the suite to its commit, without changes of an earlier run."""
    def git(*args: str) -> None:
        subprocess.run(["git", "-C", str(SUITE), *args], check=True)

    if not (SUITE / ".git").exists():
        SUITE.mkdir(parents=True, exist_ok=True)
        git("init", "-q")
    has = ["git", "-C", str(SUITE), "cat-file", "-e", COMMIT + "^{commit}"]
    if subprocess.run(has, stderr=subprocess.DEVNULL).returncode != 0:
        git("fetch", "-q", "--depth", "1", source, COMMIT)
    git("checkout", "-q", "-f", COMMIT)
    helper = SUITE / "tests" / "test_helper.tcl"
    text = helper.read_text()
    if text.count(BEGIN) != 1:
        raise RuntimeError(f"{helper} does not begin its tests as expected")
    isolate = f"\nsource {{{HERE / 'isolate.tcl'}}}\n"
    helper.write_text(text.replace(BEGIN, isolate + BEGIN))


def run(file: str, program: Path) -> tuple[list[str], dict[str, str], int]:
    """Names of the tests that passed, the failed ones with what was said, how many were left out."""
    with tempfile.TemporaryDirectory() as directory:
        server = Server(program, directory)
        try:
            command = ["tclsh", "tests/test_helper.tcl", "--host", "127.0.0.1"]
            command += ["--port", str(server.port), "--single", file, "--durable"]
            done = subprocess.run(
                ["timeout", str(SECONDS_MAX), *command], cwd=SUITE, text=True, errors="replace",
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )
        finally:
            server.stop()
    text = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)
    if "Execution time of different units" not in text:
        raise RuntimeError(f"{file} was not run to its end:\n{text[-2000:]}")
    text = text.partition("\n                   The End")[0]
    events = re.split(r"^\[(ok|err|ignore|skip|\d+/\d+ done)\]: ", text, flags=re.M)
    passed, failed, left_out = [], {}, 0
    for kind, what in zip(events[1::2], events[2::2]):
        if kind == "ok":
            passed.append(re.sub(r" \(\d+ ms\)$", "", what.strip()))
        elif kind == "err":
            name, found, said = what.strip().partition(f" in tests/{file}.tcl\n")
            failed[name if found else "outside of a test"] = said or what
        elif kind == "ignore":
            left_out += 1
    return passed, failed, left_out


def listed() -> dict[str, dict[str, str]]:
    """The page's tables: of each file the tests that fail, and why."""
    tests, current = {file: {} for file in FILES}, None
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            current = tests.get(line[3:].strip("`"))
        row = re.fullmatch(r"\| `(.+)` \| (.+) \|", line)
        if row and current is not None:
            current[row[1].replace("\\|", "|")] = row[2]
    return tests


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--server", type=Path, help="the program; built if it is not given")
    parser.add_argument("--source", default=SOURCE, help=f"where to fetch from ({SOURCE})")
    parser.add_argument("--print", action="store_true", help="print what the failed tests said")
    parser.add_argument("files", nargs="*", metavar="FILE", help="all ten if none is given")
    args = parser.parse_args()
    unknown = set(args.files) - set(FILES)
    if unknown:
        parser.error(f"unknown file {', '.join(unknown)}")
    program = args.server
    if program is None:
        command = ["cargo", "build", "--locked", "--release", "--target-dir", "target"]
        subprocess.run(command, cwd=ROOT, check=True)
        program = ROOT / "target" / "release" / "archipelago"
    fetch(args.source)
    known, rows, complaints = listed(), [], []
    for file in args.files or FILES:
        try:
            passed, failed, left_out = run(file, program.resolve())
        except (OSError, RuntimeError) as error:
            complaints.append(f"{file}: {error}")
            continue
        rows.append([f"`{file}`", len(passed) + len(failed), len(passed), len(failed), left_out])
        for name, said in failed.items():
            if name not in known[file]:
                complaints.append(f"{file}: FAILED, not listed: {name}")
            if args.print or name not in known[file]:
                lines = " / ".join(line.strip() for line in said.splitlines()[:6])
                print(f"{file} | {name} | {lines[:400]}")
        for name in known[file].keys() - failed.keys():
            how = "passed" if name in passed else "was not run"
            complaints.append(f"{file}: listed as failing, but it {how}: {name}")
    print("\n".join(complaints))
    for row in [["file", "run", "passed", "failed", "left out"], ["---", *["---:"] * 4], *rows]:
        print("| " + " | ".join(str(cell) for cell in row) + " |")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
