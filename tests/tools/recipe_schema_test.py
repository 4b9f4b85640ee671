"""The JSON Schema that `ringside check --json-schema` prints, judged by the package jsonschema.

Guards: a schema that is none; one that refuses a recipe of ours or the defaults; one that takes a key, a value, a type or a
number that the program refuses; editors without descriptions.

Usage: recipe_schema_test.py RINGSIDE. Needs jsonschema and PyYAML.
"""

import json
import pathlib
import re
import subprocess
import sys
import unittest

import jsonschema
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
RINGSIDE = sys.argv.pop(1)
sys.path.insert(0, str(ROOT / "tests/support/prestarted"))
import prestarted  # noqa: E402


class Loader(yaml.SafeLoader):
    """Numbers as YAML 1.2 and Ringside read them: PyYAML takes 2e-4 for text."""


Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"^[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789"))


def read(path: pathlib.Path):
    return yaml.load(path.read_text(), Loader)


class RecipeSchema(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        text = prestarted.run([RINGSIDE, "check", "--json-schema"], stdout=subprocess.PIPE, check=True, timeout=60).stdout
        cls.schema = json.loads(text)
        cls.validator = jsonschema.Draft202012Validator(cls.schema)

    def test_it_is_a_schema(self):
        jsonschema.Draft202012Validator.check_schema(self.schema)

    def test_recipes_and_defaults_are_valid(self):
        recipes = [*sorted((ROOT / "recipes").rglob("*.yaml")), *sorted((ROOT / "configs").rglob("*.yaml"))]
        self.assertGreater(len(recipes), 4)
        for recipe in recipes:
            with self.subTest(recipe=recipe.relative_to(ROOT)):
                self.assertEqual([error.message for error in self.validator.iter_errors(read(recipe))], [])

    def test_defaults_of_the_schema_are_those_of_the_file(self):
        def leaves(properties, values, where=""):
            for name, schema in properties.items():
                if "properties" in schema:
                    yield from leaves(schema["properties"], values[name], f"{where}{name}.")
                else:
                    yield f"{where}{name}", schema, values[name]

        count = 0
        for key, schema, value in leaves(self.schema["properties"], read(ROOT / "configs/defaults.yaml")):
            with self.subTest(key=key):
                self.assertEqual(schema["default"], value)
                self.assertTrue(schema["description"])
                count += 1
        self.assertGreater(count, 150)

    def test_wrong_recipes_are_refused_where_the_program_refuses_them(self):
        wrong = [{"rollout": {"grup_size": 4}}, {"rolout": {}}, {"rollout": {"group_size": 0}}, {"rollout": {"group_size": "x"}},
                 {"rollout": {"group_size": 2.5}}, {"rollout": {"temperature": 0}}, {"algorithm": {"loss": "ppo"}},
                 {"optimizer": {"beta1": 1}}, {"data": {"shuffle": "maybe"}}, {"model": ["path"]}, {"model": {"path": ["a"]}}]
        for recipe in wrong:
            with self.subTest(recipe=recipe):
                self.assertFalse(self.validator.is_valid(recipe))
                done = prestarted.run([RINGSIDE, "check", "/dev/stdin"], input=json.dumps(recipe).encode(),
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, check=False)
                self.assertEqual(done.returncode, 2)
                self.assertIn(b"/dev/stdin:1", done.stdout)


if __name__ == "__main__":
    unittest.main()
