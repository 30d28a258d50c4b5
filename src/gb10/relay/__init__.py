"""The relay: brings a directory's files to many nodes in a line, each chunk verified, each node serving what it has.

Runs on the nodes (Python 3.11 or later, standard library only); started by the module gb10_relay.
"""
