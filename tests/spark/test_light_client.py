"""The import of Spark's client leaves pandas out, and other threads notice nothing of it."""

from __future__ import annotations

import subprocess
import sys

import pytest

# In a process of its own, in which nothing has imported pandas.
MEANWHILE = """
import sys, threading
from importlib.machinery import SourceFileLoader
import pyarrow as pa, pyarrow.compute as pc
from penstock.spark.connect.light_client import import_client

found = []

def convert():
    # With the parameters of the builtin by name.
    __import__("json", globals=globals(), locals=None, fromlist=("dumps",), level=0)
    # Arrow imports pandas at its first conversion of a Python value.
    found.append(pc.binary_join_element_wise("a", pa.array(["b"]), "").to_pylist())
    import pandas
    found.append(hasattr(pandas, "Index"))

execute = SourceFileLoader.exec_module

def execute_in_the_middle(self, module):
    if module.__name__ == "pyspark.sql.connect.client":
        other = threading.Thread(target=convert)
        other.start()
        other.join()
    execute(self, module)

SourceFileLoader.exec_module = execute_in_the_middle
import_client()
print(found, "pyspark.sql.connect.session" in sys.modules)
"""

ALONE = """
import sys
from penstock.spark.connect.light_client import import_client
import_client()
print("pyspark.sql.connect.session" in sys.modules, "pandas" in sys.modules)
"""

# A module of the client asks for more than the stand-in has.
FALLBACK = """
import sys
from importlib.machinery import SourceFileLoader
from penstock.spark.connect.light_client import import_client

execute = SourceFileLoader.exec_module

def execute_with_more(self, module):
    if module.__name__ == "pyspark.sql.pandas.types":
        exec("import pandas.api.types", vars(module))
    execute(self, module)
    if module.__name__ == "pyspark.sql.connect.session":
        from pandas import Index

SourceFileLoader.exec_module = execute_with_more
import_client()
import pandas
kept = [
    name
    for name, module in sys.modules.items()
    for value in (getattr(module, "pandas", None), getattr(module, "pd", None))
    if getattr(value, "__name__", "") == "pandas" and value is not pandas
]
print("pyspark.sql.connect.session" in sys.modules, hasattr(pandas, "Index"), kept)
"""


@pytest.mark.parametrize(
    ("script", "printed"),
    [(FALLBACK, "True True []"), (MEANWHILE, "[['ab'], True] True"), (ALONE, "True False")],
)
def test_the_client_is_imported_without_pandas(script: str, printed: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.stdout.strip() == printed, done.stderr
