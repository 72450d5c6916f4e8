"""Brings a ledger forward after its rows were restored or lost."""
