"""Who may include whom (CONTRIBUTING.md): kernels know no other stage, common knows no stage, and the
engine no driver."""

import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
SOURCES = {".cu", ".cuh", ".cpp", ".hpp", ".h"}


def includes(text):
    return INCLUDE.findall(text)


def is_stage(folder):
    return re.fullmatch(r"\d\d_\w+", folder) is not None


def why_not(path, included):
    """Why a file of the repository must not include another, or None. Both are relative to the root."""
    folder, target = path.split("/")[0], included.split("/")[0]
    name = path.split("/")[-1]
    if folder == "common" and is_stage(target):
        return "common knows no stage"
    if path.startswith("common/chunked/") and included.startswith("common/driver/"):
        return "the engine knows no driver"
    is_kernel = is_stage(folder) and (name == "kernel.cuh" or re.match(r"step\d", name))
    if is_kernel and is_stage(target) and target != folder:
        return "a kernel knows no other stage"
    if is_kernel and included.startswith("common/driver/"):
        return "a kernel knows no driver"
    return None


def broken_rules(files):
    """files: (path, text) of each."""
    return [
        f"{path} includes {included}: {reason}"
        for path, text in files
        for included in includes(text)
        if (reason := why_not(path, included))
    ]


class Includes(unittest.TestCase):
    def test_of_the_repository(self):
        folders = [p for p in ROOT.iterdir() if p.name == "common" or is_stage(p.name)]
        paths = [p for folder in folders for p in folder.rglob("*") if p.suffix in SOURCES]
        self.assertGreater(len(paths), 100)
        files = [(str(p.relative_to(ROOT)), p.read_text()) for p in paths]
        self.assertEqual(broken_rules(files), [])

    def test_what_breaks_a_rule_is_found(self):
        for path, included in (
            ("common/warp.cuh", "05_chunked_gla/gla.cuh"),
            ("06_rwkv6/step3_packets.cuh", "05_chunked_gla/operands.cuh"),
            ("02_naive_cuda/kernel.cuh", "common/driver/stage.hpp"),
            ("common/chunked/engine.cuh", "common/driver/stage.hpp"),
        ):
            found = broken_rules([(path, f'#pragma once\n#include "{included}"\n')])
            self.assertEqual(len(found), 1, path)
            self.assertIn(f"{path} includes {included}", found[0])

    def test_what_keeps_the_rules_is_not(self):
        for path, included in (
            ("06_rwkv6/main.cu", "05_chunked_gla/gla.cuh"),
            ("06_rwkv6/step4_engine.cuh", "06_rwkv6/operands.cuh"),
            ("06_rwkv6/step4_engine.cuh", "common/chunked/engine.cuh"),
        ):
            self.assertEqual(broken_rules([(path, f'#include "{included}"\n')]), [], path)


if __name__ == "__main__":
    unittest.main()
