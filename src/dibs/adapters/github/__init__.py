"""GitHub: its issues as a tracker. Imported only when it is configured; needs `dibs[github]`."""
