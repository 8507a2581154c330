"""Tests of the pure core: tables and properties, no clock, no mock."""
