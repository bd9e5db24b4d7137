"""Synchronisation that every frontend shares: tables, pass states, order of use, syncers, plan switches."""
