"""The pre-push hook: refuses pushes of work that another run holds."""
