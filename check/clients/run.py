#!/usr/bin/env python3
"""Runs ten client libraries against the server and prints what each of them can do.

Usage: run.py [--server PROGRAM] [CLIENT...]

README.md beside this file says what is checked. The programs are copied to target/clients and
built there with the versions that the lock files name. Every client gets a server of its own with
an empty directory, on a port that the kernel chooses. The exit code is 1 if a check fails.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = ROOT / "target" / "clients"
CHECKS = ["connect", "pipeline", "transaction", "scan", "expiry"]
# Seconds that one client may take after it is built.
SECONDS_MAX = 120

JAVA_BUILD = [
    "mvn", "-q", "-B", "compile",
    "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:build-classpath",
    "-Dmdep.outputFile=classpath.txt",
]


@dataclass
class Language:
    """A folder with programs; `build` runs in a copy of it."""

    build: list[list[str]]
    versions: str


@dataclass
class Client:
    """One library: how its program is run, and how the file with the versions names it."""

    name: str
    language: str
    run: list[str]
    version: str


LANGUAGES = {
    "python": Language(
        [["python3", "-m", "venv", "venv"],
         ["venv/bin/pip", "install", "-q", "--disable-pip-version-check", "-r", "requirements.txt"]],
        "requirements.txt",
    ),
    "node": Language([["npm", "ci", "--silent", "--no-audit", "--no-fund"]], "package.json"),
    "go": Language([["go", "build", "-o", "bin/", "./..."]], "go.mod"),
    "java": Language([JAVA_BUILD], "pom.xml"),
    "rust": Language(
        [["cargo", "build", "--locked", "--quiet", "--target-dir", "target"]], "Cargo.toml"
    ),
}


def java(name: str) -> list[str]:
    return ["java", "-cp", "target/classes:@classpath.txt", name]


CLIENTS = [
    Client("redis-py", "python", ["venv/bin/python", "redis_py.py"], r"redis==(\S+)"),
    Client("node-redis", "node", ["node", "node-redis.mjs"], r'"redis": "([^"]+)"'),
    Client("ioredis", "node", ["node", "ioredis.mjs"], r'"ioredis": "([^"]+)"'),
    Client("go-redis", "go", ["bin/go-redis"], r"go-redis/v9 v(\S+)"),
    Client("rueidis", "go", ["bin/rueidis"], r"rueidis v(\S+)"),
    Client("redigo", "go", ["bin/redigo"], r"redigo v(\S+)"),
    Client("Jedis", "java", java("JedisCheck"), r"jedis</artifactId>\s*<version>([^<]+)"),
    Client("Lettuce", "java", java("LettuceCheck"), r"core</artifactId>\s*<version>([^<]+)"),
    Client("Redisson", "java", java("RedissonCheck"), r"redisson</artifactId>\s*<version>([^<]+)"),
    Client("redis-rs", "rust", ["target/debug/clients"], r'version = "=([^"]+)", def'),
]


class Server:
    """A server on a directory of its own, which can be started anew on the same port."""

    def __init__(self, program: Path, directory: str):
        self.program, self.directory, self.port = program, directory, 0
        self.start()

    def start(self) -> None:
        command = [self.program, "serve", "--dir", self.directory]
        command += ["--listen", f"127.0.0.1:{self.port}"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        found = re.search(r"127\.0\.0\.1:(\d+)", line)
        if not found:
            self.stop()
            raise RuntimeError(f"the server does not say where it listens: {line!r}")
        self.port = int(found[1])

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise RuntimeError("the server did not end within 60 s") from None
        finally:
            self.process.stdout.close()


def build(name: str) -> Path | None:
    """Copies a language's folder and builds it; returns the copy, or None if that fails."""
    target = BUILD / name
    shutil.copytree(HERE / name, target, dirs_exist_ok=True)
    for command in LANGUAGES[name].build:
        try:
            subprocess.run(command, cwd=target, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"the programs in {name} cannot be built: {error}", file=sys.stderr)
            return None
    return target


def run(client: Client, folder: Path, program: Path) -> tuple[set[str], str]:
    """The checks that passed, and what the client said if not all did."""
    command = []
    for word in client.run:
        before, at, name = word.partition("@")
        command.append(before + (folder / name).read_text().strip() if at else word)
    passed = set()
    with tempfile.TemporaryDirectory() as directory, tempfile.TemporaryFile("w+") as errors:
        server = Server(program, directory)
        guarded = ["timeout", "--kill-after=10", str(SECONDS_MAX), *command, str(server.port)]
        process = None
        try:
            process = subprocess.Popen(
                guarded, cwd=folder, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=errors,
            )
            for line in process.stdout:
                word, _, name = line.strip().partition(" ")
                if word == "ok" and name in CHECKS:
                    passed.add(name)
                elif word == "restart":
                    server.stop()
                    server.start()
                    process.stdin.write("\n")
                    process.stdin.flush()
            code = process.wait()
        finally:
            if process:
                # `timeout` passes SIGTERM on to the client. It cannot pass on SIGKILL.
                process.terminate()
                process.wait()
            server.stop()
        errors.seek(0)
        said = errors.read().strip()
    if code == 0 and passed == set(CHECKS):
        return passed, ""
    return passed, f"exit code {code}\n{said}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--server", type=Path, help="the program; built if it is not given")
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help="all if none is given")
    args = parser.parse_args()
    unknown = set(args.clients) - {client.name for client in CLIENTS}
    if unknown:
        parser.error(f"unknown client {', '.join(unknown)}")
    program = args.server
    if program is None:
        command = ["cargo", "build", "--locked", "--release", "--target-dir", "target"]
        subprocess.run(command, cwd=ROOT, check=True)
        program = ROOT / "target" / "release" / "archipelago"
    chosen = [client for client in CLIENTS if not args.clients or client.name in args.clients]
    folders, rows, complaints = {}, [], []
    for client in chosen:
        if client.language not in folders:
            folders[client.language] = build(client.language)
        folder = folders[client.language]
        passed, said = set(), "its program was not built"
        if folder:
            try:
                passed, said = run(client, folder, program.resolve())
            except (OSError, RuntimeError) as error:
                passed, said = set(), str(error)
        versions = (HERE / client.language / LANGUAGES[client.language].versions).read_text()
        version = re.search(client.version, versions)[1]
        marks = ["yes" if check in passed else "NO" for check in CHECKS]
        rows.append([client.name, version, *marks])
        if said:
            complaints.append(f"{client.name}: {said}")
    print("\n".join(complaints))
    for row in [["client", "version", *CHECKS], ["---"] * (2 + len(CHECKS)), *rows]:
        print("| " + " | ".join(row) + " |")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
