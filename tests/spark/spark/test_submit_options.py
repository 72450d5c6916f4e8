"""A job that began without a JVM gets its session by the options that Airflow would have given to spark-submit."""

import os
import subprocess
import sys

from local.layout import ROOT
from tagmill.spark.job_environment import SUBMIT_ARGUMENTS

JOB = """
import sys
from tagmill.config.settings import Settings
from tagmill.spark.session import session
spark = session(Settings.load(sys.argv[1]))
context = spark.sparkContext
print(context.master, context.getConf().get("spark.tagmill.test"), spark.range(3).count(), sep="|")
spark.stop()
"""


def test_options_of_submit_decide_the_session(tmp_path):
    """The options' master holds instead of the configuration's, and values keep their blanks."""
    config = tmp_path / "tagmill.toml"
    config.write_text('[spark]\nmaster = "spark://nowhere:1"\ndriver_memory = "1g"\n')
    options = "--master local[1] --conf 'spark.tagmill.test=two words' pyspark-shell"
    environment = {**os.environ, SUBMIT_ARGUMENTS: options, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", JOB, str(config)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.stdout.splitlines()[-1:] == ["local[1]|two words|3"], done.stderr
