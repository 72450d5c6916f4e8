"""Processes killed, answers lost, servers restarted."""
