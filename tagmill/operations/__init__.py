"""Operations on a pipeline, each declared once: its parameters, and how they are done.

The command line, the form in Airflow and the Spark job are made from a declaration. A declaration loads
neither Spark nor a store.
"""
