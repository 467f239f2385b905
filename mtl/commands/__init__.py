"""The subcommands of `mtl`: each is a function whose signature is its command line."""
