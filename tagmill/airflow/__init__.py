"""Airflow's side: when the steps run, with whose credentials, and what a failure means to the scheduler.

Nothing outside this folder imports Airflow, and nothing in it imports a store when a DAG file is parsed.
"""
