#!/usr/bin/env python3
"""Measures five benchmarks and compares them with the last measurement in a file.

Usage: trend.py FILE [--program PROGRAM] [--rounds N] [--scale F] [--drop F]

The benchmarks are fillrandom, readrandom and seekrandom of the engine, and reads and updates of a
FlexKV compute node that caches. Each round runs all five; the figure of a benchmark is the median of
the rounds, in operations per second. FILE gets one line of JSON per measurement, with the date and
the commit, and is created if it does not exist. The exit code is 1 if a figure is below DROP times
the last one (0.9 by default). FILE must be kept on one machine: figures of different machines do
not compare.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent


def engine(program, directory, scale):
    """One run of the engine's benchmarks: names and operations per second."""
    num = max(int(2_000_000 * scale), 1000)
    report = directory / "engine.json"
    names = "fillrandom,waitforcompaction,warmup,readrandom,seekrandom"
    run([
        program, "bench", f"--benchmarks={names}", f"--num={num}", f"--reads={num // 2}",
        "--compression_type=none", "--cache_size=1073741824", "--seed=42",
        f"--db={directory / 'db'}", f"--json={report}",
    ])
    results = json.loads(report.read_text())["results"]
    wanted = ("fillrandom", "readrandom", "seekrandom")
    return {each["name"]: each["ops_per_s"] for each in results if each["name"] in wanted}


def flexkv(program, directory, scale):
    """One run of the store over remote memory: cached reads and updates of one client."""
    report = directory / "flexkv.json"
    run([
        program, "bench", "--engine", "flexkv", "--benchmarks", "update0,update100", "--num", "20000",
        "--compute", "1", "--memory", "1", "--offload", "1000", "--seed", "42",
        "--duration", str(max(int(5 * scale), 1)), "--json", str(report),
    ])
    names = {"update0": "flexkv-read", "update100": "flexkv-update"}
    results = json.loads(report.read_text())["results"]
    return {names[each["name"]]: each["ops_per_s"] for each in results}


def run(command):
    """Runs a command; its output appears only if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"trend: {' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")


def measure(program, rounds, scale):
    """The median of each benchmark."""
    figures = {}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(prefix="archipelago-trend-") as directory:
            directory = pathlib.Path(directory)
            once = engine(program, directory, scale) | flexkv(program, directory, scale)
        for name, rate in once.items():
            figures.setdefault(name, []).append(rate)
    return {name: round(statistics.median(rates), 1) for name, rates in figures.items()}


def main():
    """Measures, appends a line to the file, and says what became slower."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("--program", default=str(ROOT / "target/release/archipelago"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="size of the runs")
    parser.add_argument("--drop", type=float, default=0.9, help="smallest ratio that passes")
    arguments = parser.parse_args()

    lines = arguments.file.read_text().splitlines() if arguments.file.exists() else []
    last = json.loads(lines[-1]) if lines else None
    figures = measure(arguments.program, arguments.rounds, arguments.scale)
    commit = subprocess.run(
        ["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True,
        check=False,
    ).stdout.strip()
    entry = {"date": time.strftime("%Y-%m-%d"), "commit": commit, "ops_per_s": figures}
    arguments.file.parent.mkdir(parents=True, exist_ok=True)
    with arguments.file.open("a") as file:
        file.write(json.dumps(entry) + "\n")

    slower = False
    for name, rate in figures.items():
        before = (last or {}).get("ops_per_s", {}).get(name)
        ratio = rate / before if before else None
        slower |= ratio is not None and ratio < arguments.drop
        shown = "first" if ratio is None else f"{ratio:.2f}"
        print(f"    {name:<16} {rate:>14.0f} ops/s {shown:>8}")
    if slower:
        sys.exit(f"trend: a benchmark is below {arguments.drop} of {last['date']} {last['commit']}")


if __name__ == "__main__":
    main()
