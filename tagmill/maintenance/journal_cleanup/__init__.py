"""Journal cleanup: deletes events and snapshots of persistence ids that are named, as the plugin's Cleanup
does, nothing undelivered.
"""
