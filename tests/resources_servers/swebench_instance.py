"""An instance of our own in the format of SWE-bench Pro: a repository with a bug, in an image of its own."""

from __future__ import annotations

import base64
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from tests.conftest import needs

BASE, IMAGE = "gym-test-git", "gym-test-swebench"
BASE_IMAGE = Path(__file__).parents[1] / "tools" / "base_image.py"
CALC = "def add(a, b):\n    return a - b\n\n\ndef double(x):\n    return 2 * x\n"
FIXED = CALC.replace("a - b", "a + b")
TESTS = """\
import unittest

import calc


class Calc(unittest.TestCase):
    def test_double(self):
        self.assertEqual(calc.double(4), 8)
"""
NEW_TESTS = TESTS + "\n    def test_add(self):\n        self.assertEqual(calc.add(2, 3), 5)\n"
SOLUTION = """\
--- a/calc.py
+++ b/calc.py
@@ -1,5 +1,5 @@
 def add(a, b):
-    return a - b
+    return a + b
 \n \n def double(x):
"""
RUN = '#!/bin/bash\nfor file in ${1//,/ }; do python3 -m unittest -v "$file"; done\n'
PARSER = r"""
import json, re, sys

text = open(sys.argv[1]).read() + open(sys.argv[2]).read()
found = re.findall(r"^(test_\w+) \(.*?\) \.\.\. (ok|FAIL|ERROR)$", text, re.MULTILINE)
status = {"ok": "PASSED", "FAIL": "FAILED", "ERROR": "ERROR"}
tests = [{"name": name, "status": status[said]} for name, said in found]
json.dump({"tests": tests}, open(sys.argv[3], "w"))
"""
SETUP = """
set -eu
export GIT_AUTHOR_DATE='2026-01-01T00:00:00Z' GIT_COMMITTER_DATE='2026-01-01T00:00:00Z'
cd /app
git init -q -b main .
git config user.email nobody@example.invalid
git config user.name nobody
mkdir tests
printf 'cache/\\n' >.gitignore
cp /setup/calc.py calc.py
cp /setup/test_calc.py tests/test_calc.py
printf 'a\\r\\nb\\r\\n' >dos.txt
git add -A
git commit -q -m base
cp /setup/fixed.py calc.py
cp /setup/new_test_calc.py tests/test_calc.py
git add -A
git commit -q -m solution
git tag solved
git remote add origin https://example.invalid/calc.git
git update-ref refs/remotes/origin/main HEAD
git checkout -q --detach HEAD~1
echo 'made by the image' >pristine.txt
git rev-parse HEAD solved >/commits
"""


@cache
def instance() -> dict[str, Any]:
    """The row of the instance; its image is built where it is not there."""
    docker = shutil.which("docker")
    up = docker is not None and subprocess.run([docker, "version"], capture_output=True, check=False).returncode == 0
    needs("Docker", present=up, reason="no daemon answers `docker version`")
    subprocess.run([sys.executable, BASE_IMAGE, BASE, "--with", "git"], check=True, capture_output=True)
    texts = {"calc.py": CALC, "fixed.py": FIXED, "test_calc.py": TESTS, "new_test_calc.py": NEW_TESTS, "go.sh": SETUP}
    # A recipe on standard input has no files beside it.
    coded = {name: base64.b64encode(text.encode()).decode() for name, text in texts.items()}
    files = " && ".join(f"echo {text} | base64 -d >/setup/{name}" for name, text in coded.items())
    recipe = f"FROM {BASE}\nRUN mkdir /setup /app && {files} && sh /setup/go.sh && rm -r /setup\nWORKDIR /app\n"
    subprocess.run(["docker", "build", "-q", "-t", IMAGE, "-"], input=recipe.encode(), check=True, capture_output=True)
    read = subprocess.run(
        ["docker", "run", "--rm", IMAGE, "cat", "/commits"], check=True, capture_output=True, text=True
    )
    base, solved = read.stdout.split()
    return {
        "instance_id": "instance_calc",
        "repo": "nobody/calc",
        "base_commit": base,
        "patch": SOLUTION,
        "before_repo_set_cmd": f"git reset --hard {base}\ngit clean -fd\ngit checkout {base}\n"
        f"git checkout {solved} -- tests/test_calc.py",
        "selected_test_files_to_run": '["tests/test_calc.py"]',
        "fail_to_pass": "['test_add']",
        "pass_to_pass": '["test_double"]',
        "run_script": RUN,
        "parser_script": PARSER,
        "dockerhub_tag": "latest",
    }
