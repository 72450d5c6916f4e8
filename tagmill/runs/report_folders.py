"""Names the folders of job reports below the storage root."""

# Folder of a pipeline, or of all pipelines, that has its reports.
REPORTS = "reports"
# Stands in place of a pipeline's name for jobs that work for several pipelines.
ALL_PIPELINES = "all"
SHARED_REPORTS = f"{ALL_PIPELINES}/{REPORTS}"
