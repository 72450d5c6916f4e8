"""Great Expectations is loaded without what only other expectations than ours need."""

import json
import subprocess
import sys

import pytest

PROGRAM = """
import json, sys
from tagmill.quality.expectations import judged, preload
from tagmill.quality.rules import rules
from tests.unit.quality.test_gate import CLEAN, LIMITS
from tagmill.config.tag_views import QualitySettings
from tagmill.quality.rules import frame

preload().join()
limits = QualitySettings.model_validate(LIMITS)
checks, page = judged(frame(CLEAN, limits), rules(CLEAN, limits), lambda *_: "", suite="s", run_name="r")
loaded = [name for name in ("scipy.stats._stats_py", "altair.vegalite", "pyspark.ml") if name in sys.modules]
import altair, pyspark.ml.feature
print(json.dumps([len(checks), len(page) > 1000, loaded, altair.Chart.__name__]))
"""


@pytest.mark.skipif(
    sys.version_info >= (3, 12), reason="PySpark 3.5 needs distutils, which this Python lacks"
)
def test_judged_loads_no_statistics_or_charts():
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout.splitlines()[-1]) == [18, True, [], "Chart"]
