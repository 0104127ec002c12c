"""Custom tables: calls of a user's object on each server."""
