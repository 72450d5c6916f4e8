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
storage = context._jsc.hadoopConfiguration().get("fs.s3a.secret.key")
command = str(context._gateway.proc.args)
shown = ["s3cr3t" in command, "spark.tagmill.test" in command]
print(context.master, context.getConf().get("spark.tagmill.test"), spark.range(3).count(), storage, shown, sep="|")
spark.stop()
"""
SECRET = '[spark.conf]\n"spark.hadoop.fs.s3a.secret.key" = "s3cr3t"\n'


def test_options_of_submit_decide_the_session(tmp_path):
    """The options' master holds instead of the configuration's, and values keep their blanks.

    Secrets among Spark's settings reach the session, but no command line.
    """
    config = tmp_path / "tagmill.toml"
    config.write_text('[spark]\nmaster = "spark://nowhere:1"\ndriver_memory = "1g"\n' + SECRET)
    options = "--master local[1] --conf 'spark.tagmill.test=two words' pyspark-shell"
    environment = {**os.environ, SUBMIT_ARGUMENTS: options, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", JOB, str(config)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    said = "local[1]|two words|3|s3cr3t|[False, True]"
    assert done.stdout.splitlines()[-1:] == [said], done.stderr
