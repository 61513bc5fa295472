"""Scripts that smwheel has run inside other people's Python processes: they import nothing of smwheel."""
