"""The speed and memory claims, measured against their peers."""
