"""Memory that clients on the same machine share with the server, so that tensors need not pass a socket."""
