"""What each kind of task minimises and measures."""
