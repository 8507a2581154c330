"""Leases in a DynamoDB table."""
