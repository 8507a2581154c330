"""Tests of what comes from outside: cards, references and configuration, hostile or garbled."""
