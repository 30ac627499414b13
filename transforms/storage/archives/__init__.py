"""Files inside `.tar` and `.zip` archives."""
