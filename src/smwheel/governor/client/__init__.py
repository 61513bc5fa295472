"""What stands before each compiler: the standard library only, because it is loaded thousands of times a build."""
