"""What a fleet asks of GitHub: requests counted at the server, the fake one of `dibs.testing`."""
