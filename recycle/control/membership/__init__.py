"""How members agree, without I/O: messages, decisions and the machine that makes them."""
